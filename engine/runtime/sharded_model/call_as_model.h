// CallAsModel: runs a part of the host's own code as the forward of the model, with the steps that the plan puts around
// the calls of the root. For what uses the root's parameters outside of a module's call, as a loss that makes the
// logits in chunks uses the head's: under fsdp they are full within it, and again while its backward runs.
// Stage before: applied_plan.h. Stage after: the host.
#pragma once

#include <functional>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

namespace moonshard {

// `inside` of `input`, which arrives as the first argument of a forward does; what it returns leaves as a first result
// does.
// Collective as a call of the model is, and to be used in place of one. A model without a plan runs `inside` alone.
// Throws PlanError: kNotSupported where the model itself is recomputed; what a call throws.
at::Tensor CallAsModel(torch::nn::Module& model, at::Tensor input,
                       const std::function<at::Tensor(const at::Tensor&)>& inside);

}  // namespace moonshard
