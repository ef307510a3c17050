#include "engine/runtime/nn/norm.h"

#include <ATen/Functions.h>
#include <torch/nn/init.h>

#include "engine/runtime/nn/deferred_parameters.h"

namespace moonshard::nn {
namespace {

// The base class allocates its parameters in its constructor: under DeferInit they are as small as possible.
torch::nn::LayerNormOptions NormBaseOptions(const torch::nn::LayerNormOptions& options) {
  return DeferInit::active() ? torch::nn::LayerNormOptions({1}).elementwise_affine(options.elementwise_affine())
                             : options;
}

}  // namespace

LayerNormImpl::LayerNormImpl(const torch::nn::LayerNormOptions& options)
    : torch::nn::LayerNormImpl(NormBaseOptions(options)) {
  if (!DeferInit::active()) return;
  this->options = options;
  if (!options.elementwise_affine()) return;
  detail::DeferParameter(parameters_, "weight", weight, options.normalized_shape());
  detail::DeferParameter(parameters_, "bias", bias, options.normalized_shape());
}

at::Tensor LayerNormImpl::forward(const at::Tensor& input) {
  // From the weight and not from the options: on local heads the weight may be a shard.
  const at::IntArrayRef shape = weight.defined() ? weight.sizes() : at::IntArrayRef(options.normalized_shape());
  return at::layer_norm(input, shape, weight, bias, options.eps());
}

std::shared_ptr<torch::nn::Module> LayerNormImpl::clone(const std::optional<torch::Device>& device) const {
  auto copy = std::make_shared<LayerNormImpl>(*this);
  if (weight.defined()) detail::CopyParameter(copy->parameters_, "weight", copy->weight, device);
  if (bias.defined()) detail::CopyParameter(copy->parameters_, "bias", copy->bias, device);
  return copy;
}

RMSNormImpl::RMSNormImpl(const RMSNormOptions& options) : options(options) { reset(); }

void RMSNormImpl::reset() {
  weight = register_parameter("weight", Empty({options.size()}));
  if (!weight.is_meta()) torch::nn::init::constant_(weight, options.unit_offset() ? 0 : 1);
}

void RMSNormImpl::pretty_print(std::ostream& stream) const {
  stream << "moonshard::nn::RMSNorm(" << options.size() << ", eps=" << options.eps() << ")";
}

at::Tensor RMSNormImpl::forward(const at::Tensor& input) {
  // The order of casts is that of transformers, so that results in bfloat16 are theirs. The kernel for GPUs computes in
  // float32 and rounds its result to the type of its input.
  if (input.is_cuda() && !options.unit_offset()) {
    return weight * std::get<0>(at::_fused_rms_norm(input, input.sizes().slice(input.dim() - 1), {}, options.eps()));
  }
  const at::Tensor wide = input.scalar_type() == at::kDouble ? input : input.to(at::kFloat);
  const at::Tensor mean_square = wide.pow(2).mean(-1, /*keepdim=*/true);
  const at::Tensor normed = wide * at::rsqrt(mean_square + options.eps());
  if (options.unit_offset()) return (normed * (1 + weight.to(wide.scalar_type()))).to(input.scalar_type());
  return weight * normed.to(input.scalar_type());
}

}  // namespace moonshard::nn
