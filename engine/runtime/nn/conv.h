// Conv1d, Conv2d, Conv3d: torch::nn's convolutions with calls that a plan can intercept. Drop-in replacements: same
// options, members, parameter names and initialisation.
//
//   input [batch, in, positions...] or [in, positions...] -> [batch, out, positions...] or [out, positions...]
//   weight [out, in / groups, kernel...], bias [out]
//
// A shard of `weight` along out makes those channels of the output; one along in, on the same shard of the input's
// channels, makes a term of a sum over the ranks (groups = 1). The bias is then added after the sum (HoldBack), along
// the channels. With groups, a shard of `weight` along out, between groups, computes these groups, on the shard of the
// input that has their channels; a depthwise convolution has one group for each channel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include <torch/nn/modules/conv.h>

#include "engine/runtime/nn/hook.h"
#include "engine/runtime/nn/late_parameter.h"

namespace moonshard::nn {

namespace detail {

// `Torch`: torch::nn::ConvNImpl, with N = `Positions` dims behind the channels.
template <class Torch, size_t Positions>
class ConvolutionImpl : public Torch, public AddsAlong {
 public:
  using Options = torch::nn::ConvOptions<Positions>;

  ConvolutionImpl(int64_t in_channels, int64_t out_channels, torch::ExpandingArray<Positions> kernel_size)
      : ConvolutionImpl(Options(in_channels, out_channels, kernel_size)) {}
  explicit ConvolutionImpl(const Options& options);

  at::Tensor forward(const at::Tensor& input);

  // Leaves "bias" out of forward. Returns false for any other parameter, if the layer has no bias, and with a
  // padding_mode other than zeros.
  bool HoldBack(std::string_view parameter);
  void ReleaseBack(std::string_view parameter);
  int64_t LateDim(std::string_view parameter) const override;

 protected:
  // Replaces the parameters, which a copy of a layer shares with it, by copies of them.
  void CopyParameters(const std::optional<torch::Device>& device);

 private:
  int64_t LocalGroups() const;
  bool holds_back_bias_ = false;
};

}  // namespace detail

class Conv1dImpl : public detail::ConvolutionImpl<torch::nn::Conv1dImpl, 1> {
 public:
  using ConvolutionImpl::ConvolutionImpl;
  std::shared_ptr<torch::nn::Module> clone(const std::optional<torch::Device>& device = std::nullopt) const override;
};
class Conv2dImpl : public detail::ConvolutionImpl<torch::nn::Conv2dImpl, 2> {
 public:
  using ConvolutionImpl::ConvolutionImpl;
  std::shared_ptr<torch::nn::Module> clone(const std::optional<torch::Device>& device = std::nullopt) const override;
};
class Conv3dImpl : public detail::ConvolutionImpl<torch::nn::Conv3dImpl, 3> {
 public:
  using ConvolutionImpl::ConvolutionImpl;
  std::shared_ptr<torch::nn::Module> clone(const std::optional<torch::Device>& device = std::nullopt) const override;
};

MOONSHARD_MODULE(Conv1d);
MOONSHARD_MODULE(Conv2d);
MOONSHARD_MODULE(Conv3d);

}  // namespace moonshard::nn
