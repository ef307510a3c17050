// CallAsModel: runs a function of the caller as if it were the forward of the model, within the steps that the plan
// runs around calls of the root. Use it for code that uses the root's parameters outside of a module's call, such as a
// loss that computes the logits in chunks from the head's weight: under fsdp these parameters are full within the call
// and while its backward runs.
// Stage before: applied_plan.h. Stage after: the caller's code.
#pragma once

#include <functional>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

namespace moonshard {

// Returns inside(input). `input` goes through the steps of the first argument of a forward, the result goes through the
// steps of the first result. Collective, as a call of the model is; use it in place of such a call. For a model without
// a plan, CallAsModel only runs `inside`. Throws PlanError: kNotSupported if the model itself is recomputed; and all
// errors of a call of the model.
at::Tensor CallAsModel(torch::nn::Module& model, at::Tensor input,
                       const std::function<at::Tensor(const at::Tensor&)>& inside);

}  // namespace moonshard
