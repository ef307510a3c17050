// AxisRing: the AttentionRing of a mesh axis, which a module's attention calls (Hookable::SetRing).
// Stage before: redistribute (RingAttention).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/layout/layout.h"
#include "engine/runtime/collective/axis_group.h"
#include "engine/runtime/intercept/region.h"
#include "engine/runtime/nn/boundary.h"
#include "engine/runtime/redistribute/ring_attention.h"

namespace moonshard {

class AxisRing final : public AttentionRing {
 public:
  // `group`: of the axis. `path`: of the module, for errors and as the label of the collectives. `zigzag`: whether the
  // tokens are shard(1,zigzag); otherwise they are shard(1). `inner`: the number of consecutive ranks that exchange
  // heads before they attend (RingAttention), so that they have the same tokens here.
  AxisRing(std::shared_ptr<AxisGroup> group, const std::string& path, bool zigzag, int64_t inner = 1);

  std::vector<Tokens> OwnTokens(int64_t length) const override;
  at::Tensor OwnShard(const at::Tensor& full, int64_t dim) const override;
  at::Tensor Attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t length,
                    const AttentionReach& reach) const override;

 private:
  std::string path_;
  AxisSet axes_;
  int64_t place_;      // of this rank's group
  int64_t groups_;     // of ranks with the same tokens, usually one rank each
  AxisFactor factor_;  // along which the groups have other tokens
  bool zigzag_;
  RingAttention attention_;
};

}  // namespace moonshard
