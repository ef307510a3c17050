#include "engine/runtime/apply/axis_ring.h"

#include <utility>

#include "engine/layout/shards.h"

namespace moonshard {

AxisRing::AxisRing(std::shared_ptr<AxisGroup> group, const std::string& path, bool zigzag)
    : rank_(group->rank()), ranks_(group->size()), zigzag_(zigzag), attention_(std::move(group), path, zigzag) {}

std::vector<AttentionRing::Tokens> AxisRing::OwnTokens(int64_t length) const {
  const DimShards shards =
      DimShards::Make(zigzag_ ? Layout::Zigzag(1) : Layout::Shard(1), length, ranks_).ValueOrThrow();
  std::vector<Tokens> out;
  for (const Interval& run : shards.of(rank_)) out.push_back({run.begin, run.length});
  return out;
}

at::Tensor AxisRing::Attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t length,
                            const AttentionReach& reach) const {
  return attention_(q, k, v, length, {reach.scale, reach.window, reach.padding});
}

}  // namespace moonshard
