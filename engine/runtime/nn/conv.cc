#include "engine/runtime/nn/conv.h"

#include <variant>
#include <vector>

#include <torch/nn/functional/conv.h>

#include "engine/runtime/nn/deferred_parameters.h"

namespace moonshard::nn {
namespace {

// The base class makes and initialises its parameters in its constructor: under DeferInit they are as small as
// possible. Of the kernel it derives a padding, so that stays.
template <class Options>
Options ConvBaseOptions(Options options) {
  if (DeferInit::active()) options.in_channels(1).out_channels(1).groups(1);
  return options;
}

}  // namespace

namespace detail {

template <class Torch, size_t Positions>
ConvolutionImpl<Torch, Positions>::ConvolutionImpl(const Options& options) : Torch(ConvBaseOptions(options)) {
  if (!DeferInit::active()) return;
  const int64_t groups = options.groups();
  TORCH_CHECK(options.in_channels() > 0 && groups > 0 && options.out_channels() > 0,
              "in_channels, groups and out_channels must be a positive integer.");
  TORCH_CHECK(options.in_channels() % groups == 0, "in_channels must be divisible by groups");
  TORCH_CHECK(options.out_channels() % groups == 0, "out_channels must be divisible by groups");
  this->options.in_channels(options.in_channels()).out_channels(options.out_channels()).groups(groups);
  std::vector<int64_t> sizes = {options.out_channels(), options.in_channels() / groups};
  sizes.insert(sizes.end(), options.kernel_size()->begin(), options.kernel_size()->end());
  DeferParameter(this->parameters_, "weight", this->weight, sizes);
  if (options.bias()) DeferParameter(this->parameters_, "bias", this->bias, {options.out_channels()});
}

template <class Torch, size_t Positions>
at::Tensor ConvolutionImpl<Torch, Positions>::forward(const at::Tensor& input) {
  if (!holds_back_bias_) [[likely]]
    return Torch::forward(input);
  namespace functional = torch::nn::functional::detail;
  const auto& o = this->options;
  if constexpr (Positions == 1) {
    return functional::conv1d(input, this->weight, {}, o.stride(), o.padding(), o.dilation(), o.groups());
  } else if constexpr (Positions == 2) {
    return functional::conv2d(input, this->weight, {}, o.stride(), o.padding(), o.dilation(), o.groups());
  } else {
    return functional::conv3d(input, this->weight, {}, o.stride(), o.padding(), o.dilation(), o.groups());
  }
}

// With another padding_mode the base class pads the input itself, by members of its own.
template <class Torch, size_t Positions>
bool ConvolutionImpl<Torch, Positions>::HoldBack(std::string_view parameter) {
  if (parameter != "bias" || !this->bias.defined()) return false;
  if (!std::holds_alternative<torch::enumtype::kZeros>(this->options.padding_mode())) return false;
  holds_back_bias_ = true;
  return true;
}

template <class Torch, size_t Positions>
void ConvolutionImpl<Torch, Positions>::ReleaseBack(std::string_view parameter) {
  if (parameter == "bias") holds_back_bias_ = false;
}

template <class Torch, size_t Positions>
int64_t ConvolutionImpl<Torch, Positions>::LateDim(std::string_view /*parameter*/) const {
  return -static_cast<int64_t>(Positions) - 1;
}

template <class Torch, size_t Positions>
void ConvolutionImpl<Torch, Positions>::CopyParameters(const std::optional<torch::Device>& device) {
  CopyParameter(this->parameters_, "weight", this->weight, device);
  if (this->bias.defined()) CopyParameter(this->parameters_, "bias", this->bias, device);
}

template class ConvolutionImpl<torch::nn::Conv1dImpl, 1>;
template class ConvolutionImpl<torch::nn::Conv2dImpl, 2>;
template class ConvolutionImpl<torch::nn::Conv3dImpl, 3>;

}  // namespace detail

std::shared_ptr<torch::nn::Module> Conv1dImpl::clone(const std::optional<torch::Device>& device) const {
  auto copy = std::make_shared<Conv1dImpl>(*this);
  copy->CopyParameters(device);
  return copy;
}

std::shared_ptr<torch::nn::Module> Conv2dImpl::clone(const std::optional<torch::Device>& device) const {
  auto copy = std::make_shared<Conv2dImpl>(*this);
  copy->CopyParameters(device);
  return copy;
}

std::shared_ptr<torch::nn::Module> Conv3dImpl::clone(const std::optional<torch::Device>& device) const {
  auto copy = std::make_shared<Conv3dImpl>(*this);
  copy->CopyParameters(device);
  return copy;
}

}  // namespace moonshard::nn
