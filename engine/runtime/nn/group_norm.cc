#include "engine/runtime/nn/group_norm.h"

#include <torch/nn/functional/normalization.h>

#include "engine/runtime/nn/deferred_parameters.h"

namespace moonshard::nn {
namespace {

// The base class allocates its parameters in its constructor: under DeferInit they are as small as possible.
torch::nn::GroupNormOptions GroupNormBaseOptions(const torch::nn::GroupNormOptions& options) {
  return DeferInit::active() ? torch::nn::GroupNormOptions(1, 1).affine(options.affine()) : options;
}

}  // namespace

GroupNormImpl::GroupNormImpl(const torch::nn::GroupNormOptions& options)
    : torch::nn::GroupNormImpl(GroupNormBaseOptions(options)) {
  if (!DeferInit::active()) return;
  this->options = options;
  if (!options.affine()) return;
  detail::DeferParameter(parameters_, "weight", weight, {options.num_channels()});
  detail::DeferParameter(parameters_, "bias", bias, {options.num_channels()});
}

// The groups are counted by the weight and not by the input, so that an input with all channels is an error.
at::Tensor GroupNormImpl::forward(const at::Tensor& input) {
  int64_t groups = options.num_groups();
  if (weight.defined() && weight.size(0) != options.num_channels()) {
    TORCH_CHECK(groups * weight.size(0) % options.num_channels() == 0, "a norm over ", groups, " groups has ",
                weight.size(0), " of ", options.num_channels(), " channels, which are not those of a number of groups");
    groups = groups * weight.size(0) / options.num_channels();
  }
  return torch::nn::functional::detail::group_norm(input, groups, weight, bias, options.eps());
}

std::shared_ptr<torch::nn::Module> GroupNormImpl::clone(const std::optional<torch::Device>& device) const {
  auto copy = std::make_shared<GroupNormImpl>(*this);
  if (weight.defined()) detail::CopyParameter(copy->parameters_, "weight", copy->weight, device);
  if (bias.defined()) detail::CopyParameter(copy->parameters_, "bias", copy->bias, device);
  return copy;
}

}  // namespace moonshard::nn
