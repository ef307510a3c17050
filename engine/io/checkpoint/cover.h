// CoverShard: which parts of stored shards make up a wanted shard, whatever meshes they are for. Stored shards may
// overlap (replicas, heads on several ranks): each element is taken from one of them.
// Used by manifest_json.cc (does every tensor have all of its elements?) and sharded_checkpoint.h.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/io/checkpoint/manifest.h"

namespace moonshard {

// A block that is in one stored shard and in the wanted one. Both counts of indices are within the shard: 0 is the
// first index that it holds.
struct Overlap {
  size_t shard = 0;  // which of the stored ones
  ShardDims stored;
  ShardDims wanted;
};

// Blocks that cover every element of `wanted` once. A shard that holds all of it is used alone, preferably one that
// equals it. nullopt if an element is in no shard. Intervals are in order, without duplicates.
std::optional<std::vector<Overlap>> CoverShard(const ShardDims& wanted,
                                               std::span<const std::optional<ShardDims>> stored);
// Whether the intervals of the stored shards divide the wanted one into more cells than CoverShard looks at (it returns
// nothing then). No plan does: millions of them.
bool IsDividedTooFinely(const ShardDims& wanted, std::span<const std::optional<ShardDims>> stored);

}  // namespace moonshard
