// NormHead: an output head whose rows count by their direction alone (Baichuan 2):
//
//   y = x (w / max(|w|, 1e-12))^T, each row w of `weight` over its own length
//
// A rank that holds some of the rows needs no others.
#pragma once

#include <memory>
#include <optional>

#include "engine/runtime/nn/hook.h"
#include "engine/runtime/nn/linear.h"

namespace moonshard::nn {

class NormHeadImpl : public LinearImpl {
 public:
  NormHeadImpl(int64_t in_features, int64_t out_features)
      : LinearImpl(torch::nn::LinearOptions(in_features, out_features).bias(false)) {}

  // x [..., in] -> [..., out].
  at::Tensor forward(const at::Tensor& input);

  std::shared_ptr<torch::nn::Module> clone(const std::optional<torch::Device>& device = std::nullopt) const override;
};

MOONSHARD_MODULE(NormHead);

}  // namespace moonshard::nn
