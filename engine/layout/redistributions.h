// Redistributions: the table of the redistributions between two layouts on one axis, with the collectives that each one
// issues in forward and backward. Any other pair of layouts is an error. compile checks plans and estimates costs with
// this table; runtime/redistribute runs the redistributions.
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

// Returns the row of from -> to; nullopt if this redistribution does not exist.
std::optional<RedistributionRow> RowOf(const Layout& from, const Layout& to);
// Returns the collective of a row; nullopt if the row needs no communication.
std::optional<CollectiveKind> CollectiveOf(RedistributionRow row, Direction direction);
// Returns the layouts that `from` can be redistributed to, for messages: "replicate, shared, shard(d)".
std::string TargetsOf(const Layout& from);

}  // namespace moonshard
