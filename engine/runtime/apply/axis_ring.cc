#include "engine/runtime/apply/axis_ring.h"

#include <utility>

#include "engine/layout/ring_steps.h"
#include "engine/runtime/intercept/region.h"

namespace moonshard {

AxisRing::AxisRing(std::shared_ptr<AxisGroup> group, const std::string& path)
    : path_(path),
      axes_(group->axes()),
      rank_(group->rank()),
      ranks_(group->size()),
      attention_(std::move(group), path) {}

AttentionRing::Tokens AxisRing::OwnTokens(int64_t length) const {
  const Interval own = RingSteps(length, std::nullopt, ranks_).Block(rank_);
  return {own.begin, own.length};
}

at::Tensor AxisRing::OwnShard(const at::Tensor& full, int64_t dim) const {
  const Tokens own = OwnTokens(full.size(dim));
  Region region("slice of a ring's tokens", path_, axes_);
  at::Tensor shard = full.narrow(dim, own.first, own.count);
  region.DeclareSlice(full, shard, shard, Layout::Shard(static_cast<int>(dim)));
  return shard;
}

at::Tensor AxisRing::Attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t length,
                            const AttentionReach& reach) const {
  return attention_(q, k, v, length, {reach.scale, reach.window, reach.padding, reach.documents});
}

}  // namespace moonshard
