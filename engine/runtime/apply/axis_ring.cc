#include "engine/runtime/apply/axis_ring.h"

#include <utility>

#include <ATen/Functions.h>

#include "engine/layout/shards.h"
#include "engine/runtime/intercept/region.h"

namespace moonshard {

AxisRing::AxisRing(std::shared_ptr<AxisGroup> group, const std::string& path, bool zigzag, int64_t inner)
    : path_(path),
      axes_(group->axes()),
      place_(group->rank() / inner),
      groups_(group->size() / inner),
      factor_(inner == 1 ? AxisFactor::kBoth : AxisFactor::kOuter),
      zigzag_(zigzag),
      attention_(std::move(group), path, zigzag, inner) {}

std::vector<AttentionRing::Tokens> AxisRing::OwnTokens(int64_t length) const {
  const DimShards shards =
      DimShards::Make(zigzag_ ? Layout::Zigzag(1) : Layout::Shard(1), length, groups_).ValueOrThrow();
  std::vector<Tokens> out;
  for (const Interval& run : shards.of(place_)) out.push_back({run.begin, run.length});
  return out;
}

at::Tensor AxisRing::OwnShard(const at::Tensor& full, int64_t dim) const {
  const std::vector<Tokens> own = OwnTokens(full.size(dim));
  Region region("slice of a ring's tokens", path_, axes_, factor_);
  std::vector<at::Tensor> runs;
  for (const auto& [first, count] : own) runs.push_back(full.narrow(dim, first, count));
  if (runs.empty()) runs.push_back(full.narrow(dim, 0, 0));
  at::Tensor shard = runs.size() == 1 ? runs.front() : at::cat(runs, dim);
  const auto cut = static_cast<int>(dim);
  region.DeclareSlice(full, runs, shard, zigzag_ ? Layout::Zigzag(cut) : Layout::Shard(cut));
  return shard;
}

at::Tensor AxisRing::Attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t length,
                            const AttentionReach& reach) const {
  return attention_(q, k, v, length, {reach.scale, reach.window, reach.padding, reach.documents});
}

}  // namespace moonshard
