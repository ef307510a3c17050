// Replicas: compares or broadcasts, between steps, the values that several ranks hold. A step keeps these values equal
// only while every rank writes the same values. Before a plan is applied, use apply/initial_values.h.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/core/base/diagnostic.h"

namespace moonshard {

class AppliedPlan;

// Along every axis that does not shard a parameter or buffer, copies the bytes of the rank with coordinate 0 to the
// other ranks. Use it for a model that each rank initialised by itself. Key/value heads that only some ranks of an axis
// share are not changed. Collective over the axes that the plan uses: one flat all-reduce of bytes per axis.
void BroadcastReplicas(const AppliedPlan& model);

// Returns one kRanksDisagree for each parameter or buffer whose bytes differ between ranks along an axis that does not
// shard it. Each diagnostic lists the ranks of this rank's groups whose values differ from the values of the first rank
// of the group. Key/value heads that only some ranks of an axis share are not compared. Collective over the axes that
// the plan uses: one all-gather of one hash per tensor for each axis.
Diagnostics FindDrift(const AppliedPlan& model);

// Compares during training, so that ranks that drift apart end with an error and do not go on with different models:
// - The parameters, as FindDrift does. Typical causes of a difference: an optimizer that computes one number from all
//   of its parameters (torch::optim::LBFGS, LAMB) and has only this rank's shards; an update that only some ranks run.
// - The factor by which each rank has scaled its gradients since the backward, for up to 8 parameters, sharded ones
//   too. Causes of a difference: torch::nn::utils::clip_grad_norm_, or a clipping of one's own by the norm of shards.
//   Not seen: gradients that were set to zero in place before the next call, or that a later backward has added to,
//   and parameters with fewer than 8 different gradient elements on a rank.
//
//   moonshard::DriftCheck check(model, 100);  // lives as long as the training loop
//
// Every `every`-th outermost call of the model with gradients enabled begins with the comparison; the first call does
// not. It does not compare buffers: running statistics of a BatchNorm are those of each rank's own rows. Each
// comparison costs what FindDrift costs; parameters on a GPU are copied to the host. The backward before it copies up
// to 256 elements of each of the 8 gradients. Throws PlanError (kRanksDisagree), on every rank of a group in which
// values or factors differ. With micro-batches every micro-batch is a call. Collective: make it on every rank with the
// same `every` (at least 1, else PlanError kBadArgument). The model must have a module on the way of each call that the
// plan can watch (AppliedPlan::Watch). The DriftCheck keeps a reference to `model`.
class DriftCheck {
 public:
  DriftCheck(AppliedPlan& model, int64_t every);
  ~DriftCheck();
  DriftCheck(const DriftCheck&) = delete;
  DriftCheck& operator=(const DriftCheck&) = delete;

 private:
  class Observer;
  std::unique_ptr<Observer> observer_;
};

}  // namespace moonshard
