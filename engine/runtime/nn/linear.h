// Linear: torch::nn::Linear whose calls a plan can intercept. A drop-in: same options, members, parameter names and
// initialisation. forward works on whatever shards weight and bias hold.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include <torch/nn/modules/linear.h>

#include "engine/runtime/nn/hook.h"

namespace moonshard::nn {

class LinearImpl : public torch::nn::LinearImpl {
 public:
  LinearImpl(int64_t in_features, int64_t out_features)
      : LinearImpl(torch::nn::LinearOptions(in_features, out_features)) {}
  explicit LinearImpl(const torch::nn::LinearOptions& options);

  // x [..., in] -> [..., out], both as far as `weight` [out, in] holds them.
  at::Tensor forward(const at::Tensor& input);

  // Makes `weight` this layer's own too: one tensor under both names (an output head that shares the embedding).
  void TieWeight(const at::Tensor& weight);

  // Takes "bias"; false for anything else, and where there is no bias.
  bool HoldBack(std::string_view parameter);
  void ReleaseBack(std::string_view parameter);

  std::shared_ptr<torch::nn::Module> clone(const std::optional<torch::Device>& device = std::nullopt) const override;

 private:
  bool holds_back_bias_ = false;
};

MOONSHARD_MODULE(Linear);

}  // namespace moonshard::nn
