#include "engine/runtime/nn/conv.h"

#include <variant>
#include <vector>

#include <torch/nn/functional/conv.h>
#include <torch/nn/functional/padding.h>

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

template <class Mode>
torch::nn::functional::PadFuncOptions::mode_t PadMode(const Mode& mode) {
  if (std::holds_alternative<torch::enumtype::kReflect>(mode)) return torch::kReflect;
  if (std::holds_alternative<torch::enumtype::kReplicate>(mode)) return torch::kReplicate;
  return torch::kCircular;
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
  const auto& o = this->options;
  const int64_t groups = LocalGroups();
  if (!holds_back_bias_ && groups == o.groups()) [[likely]]
    return Torch::forward(input);
  namespace functional = torch::nn::functional::detail;
  const at::Tensor bias = holds_back_bias_ ? at::Tensor() : this->bias;
  at::Tensor padded = input;
  auto padding = o.padding();
  if (!std::holds_alternative<torch::enumtype::kZeros>(o.padding_mode())) {
    padded = functional::pad(input, this->_reversed_padding_repeated_twice, PadMode(o.padding_mode()), 0);
    padding = torch::ExpandingArray<Positions>(0);
  }
  if constexpr (Positions == 1) {
    return functional::conv1d(padded, this->weight, bias, o.stride(), padding, o.dilation(), groups);
  } else if constexpr (Positions == 2) {
    return functional::conv2d(padded, this->weight, bias, o.stride(), padding, o.dilation(), groups);
  } else {
    return functional::conv3d(padded, this->weight, bias, o.stride(), padding, o.dilation(), groups);
  }
}

// From the weight and not from the input, so that an input with the channels of all groups is an error. Output channels
// that begin or end within a group would combine the channels of another one.
template <class Torch, size_t Positions>
int64_t ConvolutionImpl<Torch, Positions>::LocalGroups() const {
  const int64_t groups = this->options.groups();
  const int64_t out = this->options.out_channels();
  if (groups == 1 || this->weight.size(0) == out) return groups;
  TORCH_CHECK(groups * this->weight.size(0) % out == 0, "a convolution with ", groups, " groups has ",
              this->weight.size(0), " of ", out, " output channels, which are not those of a number of groups");
  return groups * this->weight.size(0) / out;
}

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
