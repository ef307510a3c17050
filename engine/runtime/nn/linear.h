// Linear: torch::nn::Linear with calls that a plan can intercept. A drop-in replacement: same options, members,
// parameter names and initialisation. forward works with any shards of weight and bias.
//
// NormHead: an output head with normalised weight rows (Baichuan 2):
//
//   y = x (w / max(|w|, 1e-12))^T, each row w of `weight` divided by its L2 norm
//
// The norm of a row depends on that row alone, so a colwise shard of `weight` needs no communication.
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

  // x [..., in] -> [..., out]; in and out are the sizes of `weight` [out, in]; `weight` may be a shard.
  at::Tensor forward(const at::Tensor& input);

  // Makes `weight`, of the same shape, the weight of this layer: both layers then share one tensor (a tied head and
  // embedding).
  void TieWeight(const at::Tensor& weight);

  // Leaves "bias" out of forward (rowwise: the bias is added once, after the sum over ranks). Returns false for any
  // other parameter, and if the layer has no bias.
  bool HoldBack(std::string_view parameter);
  void ReleaseBack(std::string_view parameter);

  // x W^T becomes x W^T + scale (drop(x) A^T) B^T: an adapter. The term is computed in the dtype of A and B, and added
  // in the dtype of the result. Null: no term. Returns true.
  bool SetLowRank(std::shared_ptr<const LowRank> term);

  std::shared_ptr<torch::nn::Module> clone(const std::optional<torch::Device>& device = std::nullopt) const override;

 private:
  bool holds_back_bias_ = false;
  std::shared_ptr<const LowRank> low_rank_;
};

MOONSHARD_MODULE(Linear);

class NormHeadImpl : public LinearImpl {
 public:
  NormHeadImpl(int64_t in_features, int64_t out_features)
      : LinearImpl(torch::nn::LinearOptions(in_features, out_features).bias(false)) {}

  // x [..., in] -> [..., out].
  at::Tensor forward(const at::Tensor& input);

  // Returns false: the rows of W + B A would have to be normalised.
  static bool SetLowRank(const std::shared_ptr<const LowRank>& term);

  std::shared_ptr<torch::nn::Module> clone(const std::optional<torch::Device>& device = std::nullopt) const override;
};

MOONSHARD_MODULE(NormHead);

}  // namespace moonshard::nn
