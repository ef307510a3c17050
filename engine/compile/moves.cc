#include "engine/compile/moves.h"

namespace moonshard {

const char* ToString(Collective collective) {
  switch (collective) {
    case Collective::kAllGather: return "all_gather";
    case Collective::kAllReduce: return "all_reduce";
    case Collective::kAllToAll: return "all_to_all";
    case Collective::kReduceScatter: return "reduce_scatter";
  }
  return "all_reduce";
}

std::optional<MoveRow> RowOf(const Layout& from, const Layout& to) {
  using enum Collective;
  using K = LayoutKind;
  if (from == to) return MoveRow{};
  switch (from.kind) {
    case K::kReplicate:
      if (to.kind == K::kShared) return MoveRow{std::nullopt, kAllReduce};
      if (to.kind == K::kShard) return MoveRow{std::nullopt, kAllGather};
      break;
    case K::kShard:
      if (to.kind == K::kShared) return MoveRow{kAllGather, kReduceScatter};
      if (to.kind == K::kReplicate) return MoveRow{kAllGather, std::nullopt};
      // Between two cuts of the same dim there is no row: all-to-all exchanges one dim for another.
      if (to.kind == K::kShard && from.dim != to.dim) return MoveRow{kAllToAll, kAllToAll};
      break;
    case K::kPartial:
      if (to.kind == K::kReplicate) return MoveRow{kAllReduce, std::nullopt};
      if (to.kind == K::kShared) return MoveRow{kAllReduce, kAllReduce};
      if (to.kind == K::kShard) return MoveRow{kReduceScatter, kAllGather};
      break;
    case K::kShared: break;
  }
  return std::nullopt;
}

std::string TargetsOf(const Layout& from) {
  switch (from.kind) {
    case LayoutKind::kReplicate: return "shared, shard(d)";
    case LayoutKind::kShard: return "shared, replicate, a shard of another dim";
    case LayoutKind::kPartial: return "replicate, shared, shard(d)";
    case LayoutKind::kShared: return "nothing else: it is what sharded compute uses";
  }
  return "";
}

void CollectiveTotals::AddForward(Collective collective, int64_t bytes) {
  Entry& entry = forward[collective];
  ++entry.count;
  entry.bytes += bytes;
}

void CollectiveTotals::AddBackward(Collective collective, int64_t bytes) {
  Entry& entry = backward[collective];
  ++entry.count;
  entry.bytes += bytes;
}

}  // namespace moonshard
