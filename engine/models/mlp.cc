#include "engine/models/mlp.h"

#include <ATen/TensorOperators.h>

namespace moonshard {

GatedMlpImpl::GatedMlpImpl(const MlpSizes& sizes) : activation_(sizes.activation) {
  const auto wide = torch::nn::LinearOptions(sizes.hidden, sizes.intermediate).bias(sizes.bias);
  const auto narrow = torch::nn::LinearOptions(sizes.intermediate, sizes.hidden).bias(sizes.bias);
  gate_proj_ = register_module(sizes.gate, nn::Linear(wide));
  up_proj_ = register_module(sizes.up, nn::Linear(wide));
  down_proj_ = register_module(sizes.down, nn::Linear(narrow));
}

at::Tensor GatedMlpImpl::forward(const at::Tensor& hidden) {
  return down_proj_(Activate(activation_, gate_proj_(hidden)) * up_proj_(hidden));
}

FusedGatedMlpImpl::FusedGatedMlpImpl(const MlpSizes& sizes) : activation_(sizes.activation) {
  const auto wide = torch::nn::LinearOptions(sizes.hidden, 2 * sizes.intermediate).bias(sizes.bias);
  const auto narrow = torch::nn::LinearOptions(sizes.intermediate, sizes.hidden).bias(sizes.bias);
  gate_up_proj_ = register_module("gate_up_proj", nn::Linear(wide));
  down_proj_ = register_module("down_proj", nn::Linear(narrow));
}

at::Tensor FusedGatedMlpImpl::forward(const at::Tensor& hidden) {
  const at::Tensor both = gate_up_proj_(hidden);
  const int64_t half = both.size(-1) / 2;
  return down_proj_(Activate(activation_, both.narrow(-1, 0, half)) * both.narrow(-1, half, half));
}

}  // namespace moonshard
