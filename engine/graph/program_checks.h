// ProgramChecks: compares a plan with the graph of an exported program, before a tensor is touched or a rank is started
// (local_sizes.h):
//
//   kFixedSize       an integer of the graph is valid only for the full size of a dim that the plan shards; or a part
//                    of a sharded dim is selected as if the dim were full; or the size of a shard is used for a full
//                    tensor; or a number that is computed from it is used as a value and differs from the number of
//                    the full model
//   kFlowDoesNotFit  the input of a module has another layout than the plan declares; or the operands of an operator
//                    between modules have layouts that do not fit together; or one tensor is two inputs of a module
//                    with different redistributions; or the plan declares a redistribution for a module whose nodes are
//                    not contiguous in the graph; or a module changes its result after a parameter was added that the
//                    plan adds after the reduction
//   kProgramGuard    a condition of the program on sizes of parameters does not hold for the sizes of shards
//   kNotSupported    a unit of fsdp is called in a branch of torch.cond, which not every data-parallel rank may run; an
//                    adapter of a module whose weight has other uses than aten::linear in the module's calls; or
//                    (a warning) an operator on sharded tensors whose results are not followed
//
// The branches of torch.cond are both followed. The predicate must be the same on every rank, so it must not be
// computed from a partial tensor, nor have another value for the size of a shard than for the full size; and both
// branches must return the same layout.
//
// Each finding has a plan line and a suggested fix. A finding about a node names the node, its module and the plan line
// that shards the dim. Equal layers share one finding.
//
// Stage before: engine/io/exported_program. Stage after: engine/plan/resolve, which runs the checks of a tree.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/base/diagnostic.h"
#include "engine/graph/local_sizes.h"
#include "engine/io/exported_program/exported_program.h"
#include "engine/layout/module_tree.h"
#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {

// Who computes the loss of a causal language model (IsCausalLm) under the plan.
enum class LossBy : uint8_t {
  kProgram,  // its graph: a conflict of the operators of the loss is an error, as any other
  // The caller may compute it from sharded logits (WithoutLoss): such a conflict is a warning, unless the loss has
  // other operators than the cross-entropy of the next tokens (IsOfPlainLoss).
  kCaller,
};

// What running the operators of a program on made-up tensors shows (engine/models/program/trial).
struct ProgramTrials {
  Diagnostics errors;
  // By output of the program: its layout along the axis; nullopt: no tensor, unknown, or no layout declares these
  // elements.
  std::vector<std::optional<Layout>> outputs;
  std::map<std::string, int64_t> unknown;  // operators with unknown results: name, number of nodes
  int64_t nodes = 0;                       // number of operators of the graph
  int64_t tried = 0;                       // of these, on operands that are sharded or partial
  int64_t large = 0;                       // of these, not tried for the size of their operands
  // Paths of the parameters of which neither a rule nor a trial tells what the backward makes on each rank, sorted.
  std::vector<std::string> unknown_gradients;
};
// Along a followed axis (followed_axis.h). `with_loss`: also the operators that only the output "loss" depends on.
using TrialsOf = std::function<ProgramTrials(const ExportedProgram& program, const CompiledPlan& plan, MeshAxis axis,
                                             bool with_loss)>;

// Adds the data flow of the graph (ModuleTree::flow) and the pass "sizes" (ModuleTree::checks) to the tree of a
// program. Every plan that is resolved for the tree is then compared with the graph. `trials`: runs the operators if
// the comparison finds no error; empty: they are not run.
void AddProgramKnowledge(ModuleTree& tree, std::shared_ptr<const ExportedProgram> program,
                         LossBy loss = LossBy::kProgram, TrialsOf trials = {});

// Returns the conflicts of FindSizeConflicts as diagnostics.
Diagnostics ToDiagnostics(const SizeConflicts& conflicts, const ExportedProgram& program, const CompiledPlan& plan,
                          LossBy loss = LossBy::kProgram);

}  // namespace moonshard
