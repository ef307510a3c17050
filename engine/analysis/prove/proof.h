// Proof: the result of checking one step under a plan: its faults, the operators that could not be checked, the
// assumptions, and the step for which it holds.
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
    // Tensors from outside of the step are equal on all tp ranks, and constants or rows of the batch on data-parallel
    // ranks.
    kConstants,
    kRegions,     // regions (the engine's redistributions and losses) make the layouts that they declare
    kAxes,        // along axes other than tp, sizes are right if the layouts are right
    kNumbers,     // operators whose sizes and numbers have no counterpart at tp=1 (step_sizes.h)
    kValueSizes,  // results whose sizes depend on values, such as the tokens of an expert
    kSlices,      // slices outside of all modules (of flattened gradients) that begin at another index than at tp=1
    kBackwards,   // a backward that runs other operators than at tp=1 is the derivative of its forward
  };

  Kind kind = Kind::kConstants;
  int64_t count = 0;  // number of tensors, results, slices or modules; kRegions, kAxes, kNumbers: the length of `of`
  std::vector<std::string> of;  // names of regions, axes, kinds of operators or modules; regions are sorted

  // One sentence for reports.
  std::string ToText() const;
};
// "constants", "regions", "axes", "numbers", "value_sizes", "slices", "backwards".
std::string_view ToString(Assumption::Kind kind);

// The step for which a proof holds. Other sizes, ranks or paths through the model's code are not covered.
struct ProofScope {
  MeshShape mesh;
  std::vector<int64_t> ranks;  // the ranks whose step was checked: one, or all of tp if shards have owners
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

  bool sizes_compared = false;                  // all sizes, with those of the step at tp=1; true if tp is 1
  std::vector<std::string> sizes_not_compared;  // sizes that were not compared, with the reason
  // Whether one rank alone holds some parameter (an expert): this rank computes as at tp=1, and the other ranks hold no
  // part of the parameter.
  bool has_owners = false;
  bool loss_checked = false;  // TypeScope::Loss checked that the loss is replicated along tp
  // Wrongly declared layouts at boundaries that redistribute nothing: no number depends on these declarations, so they
  // are not faults. Empty unless the loss is checked: without this check, a value that leaves the model must have its
  // declared layout.
  std::vector<TypeFault> untrue = {};
  std::vector<Assumption> assumptions;  // on which holds() depends
  ProofScope scope;

  // Whether the layouts of all operators fit together, given the layouts that the plan declares. Does not cover numbers
  // that the forward takes from the sizes of shards (step_sizes.h).
  bool layouts_hold() const { return faults.empty() && unproven.empty(); }
  // Whether the layouts hold and all sizes and numbers were compared with those of the step at tp=1; differences are
  // faults.
  bool holds() const { return layouts_hold() && sizes_compared; }
};

// "312 operators of a forward and backward on rank 0 of tp=2, with Long [2, 24]".
std::string ScopeText(const Proof& proof);

// Returns the findings of a proof, each with the line of the plan and help where they are known.
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
