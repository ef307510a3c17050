// CallAsModel: runs a part of the host's own code as if it were the forward of the model, with the steps that the plan
// runs around calls of the root. For code that uses the root's parameters outside of a module's call, such as a loss
// that computes the logits in chunks from the head's weight: under fsdp these parameters are full within the call and
// while its backward runs.
// Stage before: applied_plan.h. Stage after: the host.
#pragma once

#include <functional>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

namespace moonshard {

// Returns inside(input). `input` goes through the steps of the first argument of a forward, the result through those of
// the first result. Collective like a call of the model, and to be used in place of one. For a model without a plan it
// only runs `inside`. Throws PlanError: kNotSupported if the model itself is recomputed; and all errors of a call of
// the model.
at::Tensor CallAsModel(torch::nn::Module& model, at::Tensor input,
                       const std::function<at::Tensor(const at::Tensor&)>& inside);

}  // namespace moonshard
