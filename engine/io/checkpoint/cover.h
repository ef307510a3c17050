// CoverShard: computes which parts of stored shards make up a wanted shard; the meshes of the stored shards and of the
// wanted shard may differ. Stored shards may overlap (replicas, heads on several ranks): each element is taken from one
// of the stored shards that contain it.
// Used by manifest_json.cc, which checks that the shards of every tensor cover the tensor, and by sharded_checkpoint.h.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/io/checkpoint/manifest.h"

namespace moonshard {

// A block of elements that is both in a stored shard and in the wanted shard. Its indices are given for both shards, as
// local indices: 0 is the first index that the shard contains.
struct Overlap {
  size_t shard = 0;  // index of the stored shard
  ShardDims stored;  // the block, in local indices of the stored shard
  ShardDims wanted;  // the block, in local indices of the wanted shard
};

// Returns blocks that cover every element of `wanted` once. A stored shard that contains all of `wanted` is used alone;
// a shard that equals `wanted` is preferred. `stored`: by rank file; nullopt: the file does not have the tensor. All
// intervals must be in order, without duplicates. Returns nullopt if an element is in no stored shard, or if
// IsDividedTooFinely.
std::optional<std::vector<Overlap>> CoverShard(const ShardDims& wanted,
                                               std::span<const std::optional<ShardDims>> stored);
// Returns whether the intervals of the stored shards divide the wanted shard into more than 2^22 cells, the limit of
// CoverShard. The shards of a plan are always below this limit.
bool IsDividedTooFinely(const ShardDims& wanted, std::span<const std::optional<ShardDims>> stored);

}  // namespace moonshard
