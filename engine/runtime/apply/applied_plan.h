// AppliedPlan: a compiled plan applied to a live model: parameters hold this rank's shards, redistributions run at
// module calls, partial gradients are reduced.
// Stage before: compile. Stage after: training or evaluation through the model as it was written.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "engine/plan/compile/compiled_plan.h"
#include "engine/runtime/apply/initial_values.h"
#include "engine/runtime/apply/live_tree.h"
#include "engine/runtime/collective/axis_group.h"
#include "engine/runtime/mesh/device_mesh.h"
#include "engine/runtime/nn/boundary.h"

namespace moonshard {

class Unit;  // engine/runtime/fsdp/unit.h

struct ApplyOptions {
  CheckOptions check = {};  // how much ranks compare before they communicate
  std::optional<c10::ScalarType> deferred_type =
      {};  // of floating-point parameters made under DeferInit; none: as made
  // What parameters begin as, where the ranks made them with values (replicas.h states the cost of the comparison).
  InitialValues initial = InitialValues::kCompare;
  // Every how many outermost calls the ranks of tp compare the values of all inputs that the plan takes as replicated
  // (input_signature.h: which); 0: only those of integers on the CPU, which every call compares. The same on every
  // rank.
  // Ranks that differ throw kCollectiveMismatch.
  int64_t check_inputs = 0;
  // On a mesh with dp_shard or dp_replicate, a plan without `fsdp` or `ddp` reduces no gradients over that axis, so
  // that each of its ranks trains a model of its own: an error (kUnusedAxis). true accepts it, for inference and for a
  // host that reduces these gradients itself.
  bool independent_replicas = false;
  // Receives the warnings and notes of the plan (CompiledPlan::findings) where it has any: on every rank, after the
  // ranks have agreed on the plan and before the model changes. Empty: they stay in plan().findings.
  std::function<void(const Diagnostics& findings)> on_findings = {};
};

// One parameter or buffer of the model, tied ones once.
struct LiveParameter {
  std::string path;                  // "model.embed_tokens.weight"
  std::vector<std::string> aliases;  // other paths of the same tensor
  ParamRef ref;
  at::Tensor tensor;           // the registered one: this rank's shard
  std::vector<int64_t> shape;  // full
  Placement placement;
  bool is_buffer = false;
};

class AppliedPlan {
 public:
  // Checks everything, compares the plan's hash with the other ranks', and only then changes the model: whatever
  // throws, the model is unchanged then, but for the values under InitialValues::kBroadcast, which may be rank 0's
  // already (of some parameters only, where a rank was lost meanwhile). `live` is the tree that `plan` was compiled
  // against. Parameters go to the mesh's device; those made under DeferInit get storage for this rank's shard and no
  // values: load or initialise them next. Collective over the mesh. Throws PlanError: kNotSupported (layouts on an axis
  // other than tp without fsdp or ddp, a style of which something is missing, a plan applied twice), kUnusedAxis
  // (ApplyOptions::independent_replicas), kStyleDoesNotFit (a parameter that the module cannot hold back, a lookup in
  // some rows that it cannot do), kRanksDisagree, kRankLost.
  static std::shared_ptr<AppliedPlan> Apply(const LiveTree& live, CompiledPlan plan, const DeviceMesh& mesh,
                                            const ApplyOptions& options = {});
  ~AppliedPlan();
  AppliedPlan(const AppliedPlan&) = delete;
  AppliedPlan& operator=(const AppliedPlan&) = delete;

  const CompiledPlan& plan() const;
  const DeviceMesh& mesh() const;
  // Sorted by path.
  const std::vector<LiveParameter>& parameters() const;
  // The module that has registered it, under its first path.
  torch::nn::Module& ModuleOf(const LiveParameter& parameter) const;

  // The group of an axis above 1 that the plan uses; tp always.
  AxisGroup& group(MeshAxis axis) const;
  bool has_group(MeshAxis axis) const;

  // For the micro-batches of one step; the same on every rank. false: gradients that are reduced over ranks (over dp,
  // and over tp those of `shared` parameters) wait outside of .grad, unsummed and unscaled; the next backward under
  // true adds all of them to .grad with one communication. Gradients that are not reduced, such as those of colwise and
  // rowwise weights on a mesh of tp alone, are added to .grad by every backward. zero_grad() clears .grad and nothing
  // else: a step that is abandoned between its micro-batches needs DropUnsyncedGradients() too.
  void SetGradientSync(bool sync);
  // Drops the gradients that wait. Between backwards; the same on every rank.
  void DropUnsyncedGradients();

  // Of the plan, in its order.
  const std::vector<std::shared_ptr<Unit>>& units() const;

  // What the collectives of this rank were since the last Clear: redistributions and gradient sums.
  CollectiveCounts counts() const;
  void ClearCounts();

  // `observer` sees calls from now on, until Unwatch: of modules that the plan's rules claim and of what holds them;
  // with `all`, of every module whose calls can be intercepted. Neither within a call. It outlives what it watches.
  void Watch(CallObserver& observer, bool all = false);
  void Unwatch(CallObserver& observer);

  // Findings after a step: planned modules that were never called (kUnusedHook, or kBypassedHook where a
  // sharded parameter got a gradient all the same).
  Diagnostics Findings() const;

  struct State;  // defined in the source

 private:
  explicit AppliedPlan(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace moonshard
