// The rows of the layout algebra: which redistributions between two layouts of one axis exist, and which collective
// each issues forward and backward. Every other pair is an error. compile checks and prices plans by this table,
// runtime/redistribute runs it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/layout/collective_counts.h"
#include "engine/layout/layout.h"

namespace moonshard {

enum class RedistributionRow : uint8_t {
  kIdentity,  // equal layouts
  kReplicateToShared,
  kReplicateToShard,
  kShardToShared,
  kShardToReplicate,
  kShardToShard,
  kPartialToReplicate,
  kPartialToShared,
  kPartialToShard,
  kSharedToPartial,
};

// The row for from -> to; nothing for a pair without one.
std::optional<RedistributionRow> RowOf(const Layout& from, const Layout& to);
// None: no communication.
std::optional<CollectiveKind> CollectiveOf(RedistributionRow row, Direction direction);
// The layouts that `from` can be redistributed to, for messages: "replicate, shared, shard(d)".
std::string TargetsOf(const Layout& from);

}  // namespace moonshard
