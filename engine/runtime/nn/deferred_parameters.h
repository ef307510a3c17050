// Deferred parameters: helpers with which the drop-in layers replace a registered parameter together with the member
// variable that holds the same tensor. They are separate from defer_init.h, because they need the large header
// torch/nn/module.h.
#pragma once

#include <optional>
#include <string>

#include <torch/nn/module.h>

#include "engine/runtime/nn/defer_init.h"

namespace moonshard::nn::detail {

using Parameters = torch::OrderedDict<std::string, at::Tensor>;

// Replaces the parameter by an uninitialised tensor of shape `sizes` with the same dtype and requires_grad. Inside a
// DeferInit scope the new tensor is on the meta device.
inline void DeferParameter(Parameters& parameters, const std::string& name, at::Tensor& member, at::IntArrayRef sizes) {
  const bool requires_grad = member.requires_grad();
  member = Empty(sizes, member.options()).set_requires_grad(requires_grad);
  parameters[name] = member;
}

// Replaces the parameter by a copy of its data with the same requires_grad, on `device` if `device` is set.
inline void CopyParameter(Parameters& parameters, const std::string& name, at::Tensor& member,
                          const std::optional<at::Device>& device) {
  const bool requires_grad = member.requires_grad();
  at::Tensor data = member.detach();
  data = device ? data.to(*device, data.scalar_type(), /*non_blocking=*/false, /*copy=*/true) : data.clone();
  member = data.set_requires_grad(requires_grad);
  parameters[name] = member;
}

}  // namespace moonshard::nn::detail
