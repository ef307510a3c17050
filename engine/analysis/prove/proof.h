// Proof: what is known of a step under a plan: its faults, what could not be judged, what was assumed, and of what step all of
// this is said.
//
//   moonshard::Proof proof = moonshard::ProveAtTwoSizes(shape, step);
//   if (!proof.holds()) std::cerr << ToText(moonshard::ToDiagnostics(proof, plan));
//   std::cout << moonshard::WriteJson(moonshard::ProofJson(proof, plan), 2);
//
// Stage before: type_scope.h. Stage after: programs that print it (verify --types).
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

// What a proof rests on and does not check.
struct Assumption {
  enum class Kind : uint8_t {
    // Tensors from outside of the step are equal on all tp ranks, and on data-parallel ranks constants or rows of the batch.
    kConstants,
    kRegions,     // regions make the layouts that they declare: the engine's own redistributions and losses, by name
    kAxes,        // along other axes than tp the sizes are right where the layouts are
    kNumbers,     // operators whose sizes and numbers have no counterpart at tp=1 (step_sizes.h)
    kValueSizes,  // results with sizes that follow values, as the tokens of an expert do
    kSlices,      // slices outside of all modules, some of flattened gradients, that begin elsewhere than at tp=1
    kBackwards,   // a backward that runs other operators than at tp=1 is the derivative of its forward; modules
  };

  Kind kind = Kind::kConstants;
  int64_t count = 0;  // tensors, results, slices or modules; of kRegions, kAxes and kNumbers how many `of` has
  std::vector<std::string> of;  // names of regions, axes, kinds of operators, modules; sorted but for modules

  // One sentence.
  std::string ToText() const;
};
// "constants", "regions", "axes", "numbers", "value_sizes", "slices", "backwards".
std::string_view ToString(Assumption::Kind kind);

// Of what step a proof speaks: of no other sizes, ranks or ways through the model's code.
struct ProofScope {
  MeshShape mesh;
  std::vector<int64_t> ranks;  // from whose places it was seen: one, or with owners of shards all of tp
  // What went into the model and around it: dtype and shape on this rank, as "Long [2, 24]", in the order in which they were met.
  std::vector<std::string> inputs;
  int64_t modules = 0;    // planned ones that were called
  bool backward = false;  // ran
};

struct Proof {
  std::vector<TypeFault> faults;  // in the order in which the step met them
  UnprovenOperators unproven;
  int64_t operators = 0;  // that ran
  int64_t assumed = 0;    // tensors from outside that were taken to be the same on every rank

  bool sizes_compared = false;                  // all of them, with the step at tp=1; true where tp is 1
  std::vector<std::string> sizes_not_compared;  // what of them was not, with why
  // Whether some shard lies on one rank alone (an expert): its owner computes as at tp=1, the others with nothing of it.
  bool has_owners = false;
  bool loss_checked = false;  // TypeScope::Loss was called: what the step makes in the end is the same on every rank
  // Layouts that the plan declares and that are not so, where nothing is redistributed by them: no number depends on them,
  // and they are no faults. Only where the loss is checked: a value that leaves the model is what the plan says.
  std::vector<TypeFault> untrue = {};
  std::vector<Assumption> assumptions;  // to be read beside holds(); by kind
  ProofScope scope;

  // Every operator is well typed: what is known along each axis follows from what the plan declares. Proves nothing of numbers
  // that the forward takes from sizes of shards (step_sizes.h).
  bool layouts_hold() const { return faults.empty() && unproven.empty(); }
  // The layouts hold, and every size and number is that of the step at tp=1.
  bool holds() const { return layouts_hold() && sizes_compared; }
};

// "312 operators of a forward and backward on rank 0 of tp=2, with Long [2, 24]".
std::string ScopeText(const Proof& proof);

// The findings of a proof, with the lines of the plan and what to do about each.
Diagnostics ToDiagnostics(const Proof& proof, const CompiledPlan& plan);

// Everything that a proof says, its findings included:
//   {"format_version", "plan", "plan_hash", "proven": bool,
//    "scope": {"mesh": {axis: ranks}, "rank", "inputs": [..], "operators", "modules", "backward": bool, "loss": bool},
//    "findings": as of check --format json,
//    "unproven": [{"why", "count", "first"}], "sizes_not_compared": [..],
//    "assumptions": [{"kind", "count", "of": [..], "text"}]}
JsonValue ProofJson(const Proof& proof, const CompiledPlan& plan);

}  // namespace moonshard
