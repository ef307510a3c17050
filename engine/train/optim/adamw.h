// AdamW: torch::optim::AdamW on this rank's shards of a sharded model. Local updates are sufficient, because the update
// of an element needs only the gradient and the moments of this element (Loshchilov and Hutter 2019, algorithm 2). Each
// rank keeps the moments of its shards.
// Stage before: apply (gradients are summed when backward returns). See also: learning_rate.h, finite.h.
#pragma once

#include <deque>
#include <optional>
#include <set>

#include <torch/optim/adamw.h>

#include "engine/runtime/apply/applied_plan.h"

namespace moonshard {

// torch::optim::AdamW, whose step runs one kernel for many parameters (LibTorch's fused AdamW) if amsgrad is off and
// all parameters with gradients are on one GPU and dense, with gradients and moments of the same dtype and strides. In
// all other cases it is the step of torch::optim::AdamW. The state has the same types and meaning in both cases, so a
// run may switch between them. Hold it as AdamW: assigned to a torch::optim::AdamW, it is one.
class AdamW : public torch::optim::AdamW {
 public:
  using torch::optim::AdamW::AdamW;
  at::Tensor step(LossClosure closure = nullptr) override;
  // One fused step, also of parameters on the CPU. Requires what is said above, except the device.
  void FusedStep();

  // A step that the device decides on, so that the host need not wait for what it depends on: `skip`, a float32 scalar
  // on the device of the parameters, is 1 where no parameter, moment or number of steps is to change, else 0. Until
  // Settle says what it was, state() counts the step as taken, and must not be replaced or changed by step(). Requires
  // CanFuse, on any device, and a `skip` that does not change until Settle.
  void FusedStepUnless(const at::Tensor& skip);
  // Says whether the device skipped the oldest step of FusedStepUnless that was not settled yet. Waits for nothing.
  void Settle(bool skipped);
  // Whether the fused operator can make the next step: what is said above. `any_device`: also on a CPU.
  bool CanFuse(bool any_device = false) const;

 private:
  using State = torch::optim::AdamWParamState;

  void Fused(const std::optional<at::Tensor>& skip);

  // A step of which the host does not know whether the device skipped it.
  struct Unsettled {
    at::Tensor skip;
    std::set<State*> counted;  // whose number of steps it is part of
  };
  std::deque<Unsettled> unsettled_;
};

// Returns AdamW with two parameter groups: first the parameters of two dims or more, with `options.weight_decay()`,
// then the other parameters (biases, weights of norms), without weight decay. The number of dims is that of the full
// tensor. A tied parameter is in the optimizer once.
AdamW MakeAdamW(const AppliedPlan& model, const torch::optim::AdamWOptions& options);

// Sets the learning rate of every parameter group of any optimizer.
void SetLearningRate(torch::optim::Optimizer& optimizer, double rate);

}  // namespace moonshard
