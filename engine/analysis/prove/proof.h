// Proof: the result of checking one step under a plan: the faults, the operators that could not be checked, the
// assumptions, and the step for which the proof holds.
//
//   moonshard::Proof proof = moonshard::ProveAtTwoSizes(shape, step);
//   if (!proof.holds()) std::cerr << ToText(moonshard::ToDiagnostics(proof, plan));
//   std::cout << moonshard::WriteJson(moonshard::ProofJson(proof, plan), 2);
//
// Stage before: type_scope.h. Stage after: programs that print the proof (verify --types).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/analysis/types/type_fault.h"
#include "engine/core/base/diagnostic.h"
#include "engine/core/base/json.h"
#include "engine/layout/mesh_shape.h"

namespace moonshard {

struct CompiledPlan;

// An assumption of a proof, which the proof does not check.
struct Assumption {
  enum class Kind : uint8_t {
    // Tensors from outside of the step are equal on all ranks of tp and cp; on data-parallel ranks each such tensor is
    // a constant or holds rows of the batch.
    kConstants,
    kRegions,     // regions (redistributions and losses of the engine) return tensors of the layouts that they declare
    kAxes,        // along axes other than tp and cp, sizes are right if the layouts are right
    kNumbers,     // sizes and numbers that are not compared with tp=1 and are not reported one by one (step_sizes.h)
    kValueSizes,  // sizes of results that depend on values, such as the number of tokens of an expert
    kSlices,      // slices outside of all modules (of flattened gradients) may begin at another index than at tp=1
    kBackwards,   // a backward that runs other operators than at tp=1 is the derivative of its forward
    kExperts,     // on ep, each row is computed by itself and by the expert that its token has chosen
    kOwnRows,     // operators mix the rows of one data-parallel rank, and take them for all rows
    kRandom,      // generators are seeded as the ranks need it, and only operators draw from them
    kLossScale,   // the loss is the sum, or the mean, over the rows of the batch that TypeOptions::loss_scale declares
    kMemory,      // code of the model does not itself read or write a tensor's memory (data_ptr, accessor)
  };

  Kind kind = Kind::kConstants;
  // kConstants: number of tensors; kValueSizes: of results; kSlices: of slices; other kinds: the length of `of`.
  int64_t count = 0;
  // kRegions: the names of the regions, sorted; kAxes: of the axes; kNumbers: kinds of sizes and numbers; kBackwards:
  // modules, each with its first operator that differs; kExperts: modules that exchange tokens; kOwnRows: operators,
  // each with its module, sorted; other kinds: empty.
  std::vector<std::string> of;

  // One sentence for reports.
  std::string ToText() const;
};
// "constants", "regions", "axes", "numbers", "value_sizes", "slices", "backwards", "experts",
// "own_rows", "random", "loss_scale", "memory".
std::string_view ToString(Assumption::Kind kind);

// The step for which a proof holds. Other sizes, ranks or paths through the model's code are not covered.
struct ProofScope {
  MeshShape mesh;
  std::vector<int64_t> ranks;  // the ranks whose step was checked: one rank, or all tp ranks if has_owners
  // The inputs of the model and of the step: dtype and local shape, as "Long [2, 24]", in the order of their first use.
  std::vector<std::string> inputs;
  int64_t modules = 0;    // number of planned modules that were called
  bool backward = false;  // whether a backward ran
};

struct Proof {
  std::vector<TypeFault> faults;  // in the order of the step
  UnprovenOperators unproven;
  int64_t operators = 0;  // number of operators that ran
  int64_t assumed = 0;    // number of tensors from outside of the step that were assumed to be replicated

  // Whether all sizes and numbers were compared with the step at tp=1, and of a plan that shards the sequence on cp
  // with the step at cp=1; true if there is one rank of each.
  bool sizes_compared = false;
  std::vector<std::string> sizes_not_compared;  // sizes and numbers that were not compared, with the reason
  // Whether the plan places a parameter, or an input or output of a module, on one rank of tp alone (an expert): this
  // rank computes with it as at tp=1, and the other ranks hold no part of it.
  bool has_owners = false;
  bool loss_checked = false;  // TypeScope::Loss checked that the loss is replicated along tp
  // Wrongly declared layouts at boundaries that redistribute nothing. No number depends on such a declaration, so it is
  // not a fault. ProveAtTwoSizes fills this list only if the loss is checked: without that check, code outside of the
  // model may depend on the declared layout of a value that leaves the model.
  std::vector<TypeFault> untrue = {};
  std::vector<Assumption> assumptions;  // the assumptions on which holds() depends
  ProofScope scope;

  // Whether the layouts of all operators fit together, given the layouts that the plan declares. Does not cover numbers
  // that the forward computes from the sizes of shards (step_sizes.h).
  bool layouts_hold() const { return faults.empty() && unproven.empty(); }
  // Whether the layouts hold and all sizes and numbers were compared with the step at tp=1; a difference is a fault.
  bool holds() const { return layouts_hold() && sizes_compared; }
};

// "312 operators of a forward and backward on rank 0 of tp=2, with Long [2, 24]".
std::string ScopeText(const Proof& proof);

// Returns the findings of a proof. A finding has the line of the plan and a help text if these are known.
Diagnostics ToDiagnostics(const Proof& proof, const CompiledPlan& plan);

// The complete proof and its findings as JSON:
//   {"format_version", "plan", "plan_hash", "proven": bool,
//    "scope": {"mesh": {axis: ranks}, "ranks": [..], "inputs": [..], "operators", "modules", "backward": bool,
//              "loss": bool},
//    "findings": as of check --format json,
//    "unproven": [{"why", "count", "first"}], "sizes_not_compared": [..],
//    "assumptions": [{"kind", "count", "of": [..], "text"}]}
JsonValue ProofJson(const Proof& proof, const CompiledPlan& plan);

}  // namespace moonshard
