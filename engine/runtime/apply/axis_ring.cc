#include "engine/runtime/apply/axis_ring.h"

#include "engine/core/base/result.h"
#include "engine/layout/shards.h"

namespace moonshard {

AxisRing::AxisRing(std::shared_ptr<AxisGroup> group, const std::string& label)
    : rank_(group->rank()), ranks_(group->size()), attention_(std::move(group), label) {}

AttentionRing::Tokens AxisRing::OwnTokens(int64_t length) const {
  const DimShards shards = DimShards::Make(Layout::Shard(0), length, ranks_).ValueOrThrow();
  const std::vector<Interval>& own = shards.of(rank_);
  return own.empty() ? Tokens{length, 0} : Tokens{own.front().begin, own.front().length};
}

at::Tensor AxisRing::Attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t length,
                            const AttentionReach& reach) const {
  return attention_(q, k, v, length, {reach.scale, reach.window, reach.padding});
}

}  // namespace moonshard
