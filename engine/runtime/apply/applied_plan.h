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
#include "engine/runtime/redistribute/expert_loads.h"

namespace moonshard {

class Unit;  // engine/runtime/fsdp/unit.h

struct ApplyOptions {
  CheckOptions check = {};  // collectives before which ranks compare their calls
  // The dtype of floating-point parameters made under DeferInit. nullopt: each parameter keeps the dtype with which the
  // model was built.
  std::optional<c10::ScalarType> deferred_type = {};
  // Whether the initial values are compared between the ranks, broadcast from rank 0, or not checked. Parameters made
  // under DeferInit have no values and are skipped. initial_values.h states the cost of the comparison.
  InitialValues initial = InitialValues::kCompare;
  // In every outermost call, the ranks of tp compare the values of the replicated integer inputs on the CPU. A positive
  // n makes them compare the values of all replicated inputs in the first outermost call and in every n-th call after
  // it (input_signature.h lists the compared inputs). 0: no further values are compared. Set the same number on every
  // rank. If the inputs differ between ranks, every rank of tp throws kCollectiveMismatch.
  int64_t check_inputs = 0;
  // On a mesh with dp_shard, dp_replicate or ep, a plan without `fsdp` or `ddp` reduces no gradients over that axis, so
  // each rank of the axis trains its own model. Apply reports such a plan as an error (kUnusedAxis). true allows the
  // plan, for inference and for a training loop that reduces these gradients itself. The gradients of experts that ep
  // distributes are of the tokens of all its ranks, and each rank has other experts: they must not be reduced over ep.
  bool independent_replicas = false;
  // A call of a module whose backward would compute a gradient that the plan does not reduce over tp, while a backward
  // may follow, throws kStyleDoesNotFit (gradient_guard.h). true allows such calls: for a class that reduces the
  // gradient itself, or a program that examines plans.
  bool unreduced_gradients = false;
  // Receives the warnings and notes of the plan (CompiledPlan::findings), if there are any. Runs on every rank, after
  // the ranks have compared the plan and before the model changes. The findings are also in plan().findings, with or
  // without a callback.
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
  // model. If Apply throws, the model is unchanged, with one exception: under InitialValues::kBroadcast, tensors may
  // already have the values of rank 0 (only some of the tensors, if a rank was lost during the broadcast). `live` is
  // the tree against which `plan` was compiled. Apply places parameters on the mesh's device; shards that fsdp offloads
  // are placed on the CPU. Parameters made under DeferInit get storage for this rank's shard and no values: load or
  // initialise them next.
  //
  // Collective over the mesh. Throws PlanError: kNotSupported (a layout on an axis other than tp without fsdp or ddp, a
  // style that the engine cannot fully run yet, recomputation of a module whose calls cannot be repeated, a model to
  // which a plan was applied before), kNotHookable (a sharded parameter of a module without a hook, apply_checks.h),
  // kUnusedAxis (ApplyOptions::independent_replicas), kStyleDoesNotFit (a module that does not support
  // Hookable::HoldBack or Hookable::SetLocalRows, which its style requires), kInitialValuesDiffer, kRanksDisagree,
  // kRankLost.
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

  // Returns this rank's process group along `axis`. `axis` must be tp, or an axis that the plan uses and that has
  // several ranks (has_group).
  AxisGroup& group(MeshAxis axis) const;
  bool has_group(MeshAxis axis) const;

  // Controls gradient accumulation over the micro-batches of one step. Make the same calls on every rank. Some
  // gradients are reduced over ranks: under fsdp or ddp all gradients over the data-parallel axes, and over tp the
  // gradients of `shared` parameters and of key/value heads that several ranks hold. After SetGradientSync(false),
  // these gradients are kept outside of .grad, unreduced and unscaled. The next backward after SetGradientSync(true)
  // reduces the kept gradients at once and adds the result to .grad. Under fsdp { accumulate = "shards" } every
  // micro-batch reduce-scatters the gradients of fsdp units instead. Gradients that are not reduced, such as those of
  // colwise and rowwise weights on a mesh of tp alone, are added to .grad by every backward.
  //
  // zero_grad() clears only .grad. To abandon a step between its micro-batches, call DropUnsyncedGradients() too;
  // otherwise the kept gradients are added to the next step.
  void SetGradientSync(bool sync);
  // Drops the gradients that SetGradientSync(false) keeps outside of .grad. Call between backwards, on every rank.
  void DropUnsyncedGradients();

  // Computes with adapter `name` of the plan from the next call on; "": with none. CompiledPlan::active_adapter, active
  // after Apply, is the one that trains. Any other is for inference: without dropout, and with gradients off, so that
  // backward() of the outputs throws; the trained one keeps its values and gradients. A backward that recomputes while
  // it is not active throws kNotSupported: run the backward before the switch. To train another adapter, apply a plan
  // whose first adapter it is. Collective over the mesh; call it between the model's calls. Throws PlanError before
  // anything changes: kRanksDisagree (ranks pass different names), kBadArgument (the plan has no such adapter).
  void SetActiveAdapter(const std::string& name);
  // The name of the active adapter; "": none.
  const std::string& active_adapter() const;

  // The units of the plan's fsdp and precision sections, in the order of CompiledPlan::units.
  const std::vector<std::shared_ptr<Unit>>& units() const;
  // Whether operators now draw random numbers of this rank of tp, and not those that its ranks have in common; nullopt
  // on a tp axis of one rank.
  std::optional<bool> draws_own_numbers() const;
  // Whether ranks of tp are threads of one process, or this rank records alone: no generator is then switched.
  bool shares_generator() const;

  // Number and bytes of the collectives that this rank ran on the plan's groups since Apply or the last ClearCounts.
  CollectiveCounts counts() const;
  // For each module that exchanges tokens (Exchange): the rows that the experts of this rank received in forwards since
  // Apply or the last ClearCounts. Sorted by path.
  std::vector<ExpertLoad> expert_loads() const;
  void ClearCounts();

  // Until Unwatch, `observer` observes the calls of three kinds of modules: the root, the modules that a rule claims,
  // and the modules that contain a claimed module. With `all`, it observes the calls of every module whose calls can be
  // intercepted. Call Watch and Unwatch outside of the model's calls. The caller owns `observer`, which must live until
  // Unwatch.
  void Watch(CallObserver& observer, bool all = false);
  void Unwatch(CallObserver& observer);

  // Returns the findings after a step: for each planned module that was never called, kUnusedHook, or kBypassedHook if
  // a parameter of the module nevertheless has a gradient.
  Diagnostics Findings() const;

  struct State;  // defined in the source

 private:
  explicit AppliedPlan(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace moonshard
