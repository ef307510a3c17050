// AppliedPlan: a compiled plan applied to a live model: parameters hold this rank's shards, redistributions run at
// module calls, partial gradients are reduced.
// Stage before: compile. Stage after: training or evaluation through the model's own forward.
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
  CheckOptions check = {};  // which collectives compare the calls of the ranks before they run
  // The dtype of floating-point parameters made under DeferInit. nullopt: the dtype in which they were made.
  std::optional<c10::ScalarType> deferred_type = {};
  // Whether the initial values are compared between the ranks or broadcast. Parameters made under DeferInit have no
  // values and are skipped. initial_values.h states the cost of the comparison.
  InitialValues initial = InitialValues::kCompare;
  // n > 0: in the first outermost call and in every n-th after it, the ranks of tp compare the values of all inputs
  // that the plan takes as replicated (input_signature.h describes them). 0: only values of integer inputs on the CPU
  // are compared, in every outermost call. The same on every rank. Ranks with different values throw
  // kCollectiveMismatch.
  int64_t check_inputs = 0;
  // On a mesh with dp_shard or dp_replicate, a plan without `fsdp` or `ddp` reduces no gradients over that axis, so
  // each rank of the axis trains its own model. Apply reports this as an error (kUnusedAxis). true allows it, for
  // inference and for a host that reduces these gradients itself.
  bool independent_replicas = false;
  // Receives the warnings and notes of the plan (CompiledPlan::findings), if there are any. Runs on every rank, after
  // the ranks have compared the plan and before the model changes. Without a callback the findings stay in
  // plan().findings.
  std::function<void(const Diagnostics& findings)> on_findings = {};
};

// One parameter or buffer of the model. Tied parameters are one LiveParameter.
struct LiveParameter {
  std::string path;                  // "model.embed_tokens.weight"
  std::vector<std::string> aliases;  // other paths of the same tensor (ties)
  ParamRef ref;
  at::Tensor tensor;           // the registered tensor, which holds this rank's shard
  std::vector<int64_t> shape;  // of the full tensor
  Placement placement;
  bool is_buffer = false;
};

class AppliedPlan {
 public:
  // Checks the plan against the model, compares the hash of the plan between the ranks, and only then changes the
  // model. If Apply throws, the model is unchanged, with one exception: under InitialValues::kBroadcast the values may
  // already be those of rank 0 (of some parameters only, if a rank was lost during the broadcast). `live` is the tree
  // against which `plan` was compiled. Apply places parameters on the mesh's device; it places shards that fsdp
  // offloads on the CPU. Parameters made under DeferInit get storage for this rank's shard and no values: load or
  // initialise them next.
  //
  // Collective over the mesh. Throws PlanError: kNotSupported (a layout on an axis other than tp without fsdp or ddp, a
  // style with a part that the engine cannot run yet, recomputation of a module whose calls cannot be repeated, a model
  // to which a plan was applied before), kNotHookable (a sharded parameter of a module without a hook, apply_checks.h),
  // kUnusedAxis (ApplyOptions::independent_replicas), kStyleDoesNotFit (a module that cannot leave a parameter out of
  // its forward, or cannot look up ids in some rows of its table), kInitialValuesDiffer, kRanksDisagree, kRankLost.
  static std::shared_ptr<AppliedPlan> Apply(const LiveTree& live, CompiledPlan plan, const DeviceMesh& mesh,
                                            const ApplyOptions& options = {});
  ~AppliedPlan();
  AppliedPlan(const AppliedPlan&) = delete;
  AppliedPlan& operator=(const AppliedPlan&) = delete;

  const CompiledPlan& plan() const;
  const DeviceMesh& mesh() const;
  // Sorted by path.
  const std::vector<LiveParameter>& parameters() const;
  // The module that registers `parameter` under `parameter.path`.
  torch::nn::Module& ModuleOf(const LiveParameter& parameter) const;

  // The group of `axis`, which must be tp or an axis of several ranks that the plan uses (has_group).
  AxisGroup& group(MeshAxis axis) const;
  bool has_group(MeshAxis axis) const;

  // For the micro-batches of one step; the same on every rank. After SetGradientSync(false), gradients that are reduced
  // over ranks (over dp, and over tp those of `shared` parameters and of key/value heads that several ranks hold) are
  // kept outside of .grad, unreduced and unscaled. The next backward after SetGradientSync(true) reduces all of them at
  // once and adds the result to .grad. Under fsdp { accumulate = "shards" } every micro-batch reduce-scatters the
  // gradients of units instead. Gradients that are not reduced, such as those of colwise and rowwise weights on a mesh
  // of tp alone, are added to .grad by every backward.
  //
  // zero_grad() clears .grad only: a step that is abandoned between its micro-batches needs DropUnsyncedGradients()
  // too.
  void SetGradientSync(bool sync);
  // Drops the gradients that SetGradientSync(false) keeps outside of .grad. Call between backwards, on every rank.
  void DropUnsyncedGradients();

  // The units of the plan's fsdp and precision sections, in the order of CompiledPlan::units.
  const std::vector<std::shared_ptr<Unit>>& units() const;

  // Number and bytes of the collectives that this rank ran on the plan's groups since Apply or the last ClearCounts.
  CollectiveCounts counts() const;
  void ClearCounts();

  // From now on until Unwatch, `observer` observes the calls of modules: of the modules around whose calls the plan
  // runs steps, the modules that a rule claims, and the modules that contain these; with `all`, of every module whose
  // calls can be intercepted. Call Watch and Unwatch outside of the model's calls. The caller owns `observer`, which
  // must live until Unwatch.
  void Watch(CallObserver& observer, bool all = false);
  void Unwatch(CallObserver& observer);

  // Findings after a step: one for each planned module that was never called (kUnusedHook, or kBypassedHook if one of
  // its parameters has a gradient all the same).
  Diagnostics Findings() const;

  struct State;  // defined in the source

 private:
  explicit AppliedPlan(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace moonshard
