#include "engine/layout/redistributions.h"

namespace moonshard {
namespace {

struct Collectives {
  std::optional<CollectiveKind> forward;
  std::optional<CollectiveKind> backward;
};

Collectives CollectivesOf(RedistributionRow row) {
  using enum CollectiveKind;
  constexpr std::nullopt_t kNone = std::nullopt;
  switch (row) {
    case RedistributionRow::kIdentity: return {kNone, kNone};
    case RedistributionRow::kReplicateToShared: return {kNone, kAllReduce};
    case RedistributionRow::kReplicateToShard: return {kNone, kAllGather};
    case RedistributionRow::kShardToShared: return {kAllGather, kReduceScatter};
    case RedistributionRow::kShardToReplicate: return {kAllGather, kNone};
    case RedistributionRow::kShardToShard: return {kAllToAll, kAllToAll};
    case RedistributionRow::kPartialToReplicate: return {kAllReduce, kNone};
    case RedistributionRow::kPartialToShared: return {kAllReduce, kAllReduce};
    case RedistributionRow::kPartialToShard: return {kReduceScatter, kAllGather};
    case RedistributionRow::kSharedToPartial: return {kNone, kNone};
  }
  return {};
}

}  // namespace

std::optional<RedistributionRow> RowOf(const Layout& from, const Layout& to) {
  using enum RedistributionRow;
  using K = LayoutKind;
  if (from == to) return kIdentity;
  // Features can be shared in part only of a tensor that is replicated.
  if (to.is_shared_last() && from.kind != K::kReplicate) return std::nullopt;
  switch (from.kind) {
    case K::kReplicate:
      if (to.kind == K::kShared) return kReplicateToShared;
      if (to.kind == K::kShard) return kReplicateToShard;
      break;
    case K::kShard:
      if (to.kind == K::kShared) return kShardToShared;
      if (to.kind == K::kReplicate) return kShardToReplicate;
      // Between two shardings of the same dim there is no row: all-to-all exchanges one dim for another.
      if (to.kind == K::kShard && from.dim != to.dim) return kShardToShard;
      break;
    case K::kPartial:
      if (to.kind == K::kReplicate) return kPartialToReplicate;
      if (to.kind == K::kShared) return kPartialToShared;
      if (to.kind == K::kShard) return kPartialToShard;
      break;
    case K::kShared:
      if (to.kind == K::kPartial && from.last == 0) return kSharedToPartial;
      break;
  }
  return std::nullopt;
}

std::optional<CollectiveKind> CollectiveOf(RedistributionRow row, Direction direction) {
  const Collectives collectives = CollectivesOf(row);
  return direction == Direction::kForward ? collectives.forward : collectives.backward;
}

std::string TargetsOf(const Layout& from) {
  switch (from.kind) {
    case LayoutKind::kReplicate: return "shared, shared_last(n), shard(d)";
    case LayoutKind::kShard: return "shared, replicate, a shard of another dim";
    case LayoutKind::kPartial: return "replicate, shared, shard(d)";
    case LayoutKind::kShared: return from.last == 0 ? "partial" : "no other layout";
  }
  return "";
}

}  // namespace moonshard
