// LayerNorm: torch::nn::LayerNorm with calls that a plan can intercept. A drop-in replacement: same options, members
// and parameter names.
// RMSNorm: root mean square normalisation as Hugging Face's decoders compute it, which LibTorch's C++ API lacks:
//
//   y = weight * cast(x32 / sqrt(mean(x32^2) + eps)),  x32 = x in float32, cast back to x's dtype before the product
//
// (Zhang and Sennrich 2019, arXiv:1910.07467; transformers' LlamaRMSNorm). A double input is computed in double. With
// unit_offset (Gemma): y = cast((1 + weight32) * x32 / sqrt(mean(x32^2) + eps)).
#pragma once

#include <memory>
#include <optional>

#include <torch/nn/modules/normalization.h>

#include "engine/runtime/nn/hook.h"

namespace moonshard::nn {

class LayerNormImpl : public torch::nn::LayerNormImpl {
 public:
  LayerNormImpl(std::vector<int64_t> normalized_shape)  // NOLINT: implicit as in torch
      : LayerNormImpl(torch::nn::LayerNormOptions(std::move(normalized_shape))) {}
  explicit LayerNormImpl(const torch::nn::LayerNormOptions& options);

  // Normalises over the dims of `weight` (over options.normalized_shape if the layer has no weight).
  at::Tensor forward(const at::Tensor& input);

  std::shared_ptr<torch::nn::Module> clone(const std::optional<torch::Device>& device = std::nullopt) const override;
};

MOONSHARD_MODULE(LayerNorm);

struct RMSNormOptions {
  RMSNormOptions(int64_t size) : size_(size) {}  // NOLINT: implicit as torch's options are
  TORCH_ARG(int64_t, size);
  TORCH_ARG(double, eps) = 1e-6;
  TORCH_ARG(bool, unit_offset) = false;
};

class RMSNormImpl : public torch::nn::Cloneable<RMSNormImpl> {
 public:
  explicit RMSNormImpl(const RMSNormOptions& options);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  // x [..., size] -> the same shape.
  at::Tensor forward(const at::Tensor& input);

  RMSNormOptions options;
  at::Tensor weight;  // [size], initialised to ones; with unit_offset to zeros
};

MOONSHARD_MODULE(RMSNorm);

}  // namespace moonshard::nn
