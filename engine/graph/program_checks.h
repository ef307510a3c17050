// ProgramChecks: a plan held against the graph of an exported program, as findings, before a tensor is touched or a rank is
// started (local_sizes.h):
//
//   kFixedSize       an integer of the graph holds for the full size of a dim that the plan makes local; or a part of a sharded
//                    dim is taken as if all of it were here; or a number that follows a shard is used for what is full
//   kFlowDoesNotFit  what arrives at a module, or at an operator between modules, has another layout than the plan declares
//                    there, or than the other operand has
//
// Each names the node, its module, the plan line that made the dim local, and what to change. Equal layers have one finding.
//
// Stage before: engine/io/exported_program. Stage after: engine/plan/resolve, which runs the checks of a tree.
#pragma once

#include <memory>

#include "engine/core/base/diagnostic.h"
#include "engine/graph/local_sizes.h"
#include "engine/io/exported_program/exported_program.h"
#include "engine/layout/module_tree.h"
#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {

// Adds to the tree of a program what its graph knows: its data flow (ModuleTree::flow), and the pass "sizes"
// (ModuleTree::checks). Every plan that is resolved for the
// tree is held against the graph from then on.
void AddProgramKnowledge(ModuleTree& tree, std::shared_ptr<const ExportedProgram> program);

// The findings of what FindSizeConflicts found.
Diagnostics ToDiagnostics(const SizeConflicts& conflicts, const ExportedProgram& program, const CompiledPlan& plan);

}  // namespace moonshard
