// GroupNorm: torch::nn::GroupNorm with calls that a plan can intercept. A drop-in replacement: same options, members
// and parameter names.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include <torch/nn/modules/normalization.h>

#include "engine/runtime/nn/hook.h"

namespace moonshard::nn {

class GroupNormImpl : public torch::nn::GroupNormImpl {
 public:
  GroupNormImpl(int64_t num_groups, int64_t num_channels)
      : GroupNormImpl(torch::nn::GroupNormOptions(num_groups, num_channels)) {}
  explicit GroupNormImpl(const torch::nn::GroupNormOptions& options);

  // x [batch, channels, ...] -> the same shape. A shard of `weight` and `bias`, between groups, normalises the channels
  // of these groups. Throws c10::Error if it begins or ends within a group.
  at::Tensor forward(const at::Tensor& input);

  std::shared_ptr<torch::nn::Module> clone(const std::optional<torch::Device>& device = std::nullopt) const override;
};

MOONSHARD_MODULE(GroupNorm);

}  // namespace moonshard::nn
