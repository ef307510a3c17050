#include "engine/runtime/nn/linear.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "engine/core/base/check.h"
#include "engine/runtime/nn/deferred_parameters.h"
#include "engine/runtime/nn/low_rank.h"

namespace moonshard::nn {
namespace {

// The base class makes and initialises its parameters in its constructor: under DeferInit they are as small as
// possible.
torch::nn::LinearOptions LinearBaseOptions(const torch::nn::LinearOptions& options) {
  return DeferInit::active() ? torch::nn::LinearOptions(1, 1).bias(options.bias()) : options;
}

}  // namespace

LinearImpl::LinearImpl(const torch::nn::LinearOptions& options) : torch::nn::LinearImpl(LinearBaseOptions(options)) {
  if (!DeferInit::active()) return;
  this->options = options;
  detail::DeferParameter(parameters_, "weight", weight, {options.out_features(), options.in_features()});
  if (options.bias()) detail::DeferParameter(parameters_, "bias", bias, {options.out_features()});
}

at::Tensor LinearImpl::forward(const at::Tensor& input) {
  at::Tensor made = at::linear(input, weight, holds_back_bias_ ? at::Tensor() : bias);
  if (!low_rank_) [[likely]]
    return made;
  return AddLowRank(made, input, *low_rank_, is_training());
}

bool LinearImpl::SetLowRank(std::shared_ptr<const LowRank> term) {
  low_rank_ = std::move(term);
  return true;
}

void LinearImpl::TieWeight(const at::Tensor& weight) {
  Check(weight.sizes() == this->weight.sizes(), "a tied weight must have the shape of the layer's own weight");
  this->weight = weight;
  parameters_["weight"] = weight;
}

// A rowwise layer computes one term of a sum over ranks; a bias added here would be summed once per rank. The boundary
// adds it behind the reduction.
bool LinearImpl::HoldBack(std::string_view parameter) {
  if (parameter != "bias" || !bias.defined()) return false;
  holds_back_bias_ = true;
  return true;
}

void LinearImpl::ReleaseBack(std::string_view parameter) {
  if (parameter == "bias") holds_back_bias_ = false;
}

std::shared_ptr<torch::nn::Module> LinearImpl::clone(const std::optional<torch::Device>& device) const {
  auto copy = std::make_shared<LinearImpl>(*this);
  detail::CopyParameter(copy->parameters_, "weight", copy->weight, device);
  if (bias.defined()) detail::CopyParameter(copy->parameters_, "bias", copy->bias, device);
  return copy;
}

// Rows of the weight are normalized to length 1 on use. The norm is of a row, so a colwise shard, which holds full
// rows, computes the same values as the full weight.
at::Tensor NormHeadImpl::forward(const at::Tensor& input) {
  const at::Tensor length = weight.norm(2, {1}, /*keepdim=*/true).clamp_min(1e-12);
  return at::linear(input, weight / length);
}

bool NormHeadImpl::SetLowRank(const std::shared_ptr<const LowRank>& /*term*/) { return false; }

std::shared_ptr<torch::nn::Module> NormHeadImpl::clone(const std::optional<torch::Device>& device) const {
  auto copy = std::make_shared<NormHeadImpl>(*this);
  detail::CopyParameter(copy->parameters_, "weight", copy->weight, device);
  return copy;
}

}  // namespace moonshard::nn
