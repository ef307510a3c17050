// ShardMap: shards a tensor along one dim by the table of layout/shards.h, and joins shards again. Blocks have the form
// that collectives require: one block per rank, with equal sizes along dim 0. A ShardMap does not communicate; ranks
// are arguments.
//
// With fewer heads than ranks, several ranks (replicas) hold the same shard, and the gradient of the shard is the sum
// over these ranks. Therefore a gradient that is sharded goes to the first replica only, and the other replicas get
// zeros (`first_replica_only`). When gradients of shards are joined, they are added over the replicas (`add_replicas`).
// The sum of a weight's gradient over its replicas then counts every contribution once.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/core/base/result.h"
#include "engine/layout/layout.h"

namespace moonshard {

class ShardMap {
 public:
  // Returns the map that shards a dim of `size` elements over `ranks` ranks. `layout` must be a shard. Errors: those of
  // DimShards::Make.
  static Result<std::shared_ptr<const ShardMap>> Make(const Layout& layout, int64_t size, int64_t ranks);

  int64_t size() const { return size_; }
  int64_t ranks() const { return ranks_; }
  int64_t length(int64_t rank) const;       // of the shard of `rank`
  int64_t block() const { return block_; }  // length of the longest shard, to which every rank's block is padded

  // Returns the shard of `rank` along `dim`; may be a view of `full`. With `first_replica_only`, the parts of the shard
  // whose first replica is another rank are zeros.
  at::Tensor Take(const at::Tensor& full, int64_t dim, int64_t rank, bool first_replica_only) const;
  // [..., size, ...] -> [ranks * block, ...], contiguous, with `dim` moved to the front. Block r is the shard of rank
  // r, padded with zeros. With `first_replica_only`, replicas after the first are zeros.
  at::Tensor Pack(const at::Tensor& full, int64_t dim, bool first_replica_only) const;
  // The inverse, from the blocks of all ranks: [ranks * block, ...] -> [..., size, ...], contiguous. Uses the first
  // replica, or with `add_replicas` the sum of the replicas.
  at::Tensor Unpack(const at::Tensor& blocks, int64_t dim, bool add_replicas) const;
  // Pads a shard to a block: [..., length, ...] -> [block, ...], contiguous, padded with zeros.
  at::Tensor ToBlock(const at::Tensor& shard, int64_t dim) const;
  // The inverse: returns the shard of `rank` from its block, contiguous.
  at::Tensor FromBlock(const at::Tensor& block, int64_t dim, int64_t rank) const;

 private:
  // One interval of the dim that a rank holds.
  struct Segment {
    int64_t rank;
    int64_t local_begin;
    int64_t global_begin;
    int64_t length;
    bool first_replica;
  };

  bool plain_ = true;  // torch.chunk: segments_ and lengths_ are empty
  bool replicas_ = false;
  int64_t size_ = 0;
  int64_t ranks_ = 1;
  int64_t block_ = 0;
  std::vector<Segment> segments_;  // by global_begin, then rank; without empty segments
  std::vector<int64_t> lengths_;   // by rank
};

}  // namespace moonshard
