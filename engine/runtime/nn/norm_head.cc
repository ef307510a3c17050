#include "engine/runtime/nn/norm_head.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "engine/runtime/nn/deferred_parameters.h"

namespace moonshard::nn {

at::Tensor NormHeadImpl::forward(const at::Tensor& input) {
  const at::Tensor length = weight.norm(2, {1}, /*keepdim=*/true).clamp_min(1e-12);
  return at::linear(input, weight / length);
}

std::shared_ptr<torch::nn::Module> NormHeadImpl::clone(const std::optional<torch::Device>& device) const {
  auto copy = std::make_shared<NormHeadImpl>(*this);
  detail::CopyParameter(copy->parameters_, "weight", copy->weight, device);
  return copy;
}

}  // namespace moonshard::nn
