#include "engine/runtime/apply/axis_ring.h"

#include <utility>

#include "engine/layout/ring_steps.h"

namespace moonshard {

AxisRing::AxisRing(std::shared_ptr<AxisGroup> group, const std::string& path)
    : rank_(group->rank()), ranks_(group->size()), attention_(std::move(group), path) {}

AttentionRing::Tokens AxisRing::OwnTokens(int64_t length) const {
  const Interval own = RingSteps(length, std::nullopt, ranks_).Block(rank_);
  return {own.begin, own.length};
}

at::Tensor AxisRing::Attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t length,
                            const AttentionReach& reach) const {
  return attention_(q, k, v, length, {reach.scale, reach.window, reach.padding, reach.documents});
}

}  // namespace moonshard
