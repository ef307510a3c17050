// PieceMap: cuts and joins tensors along one dim by the table of plan/shards.h, in the forms that collectives take: equal
// blocks, one a rank, in front. Knows no ranks at run time but through its arguments; no communication.
//
// Replicas (fewer heads than ranks): the value of a shard is the same on all of them, and its gradient is the sum over
// them. So a gradient that goes to shards is given to the first replica (`once`) and the others get zeros, and gradients
// that come from shards are added over the replicas (`sum`). A sum of the weight's gradient over the replicas then counts
// each contribution once.
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
  // A dim of `size` elements over `ranks` ranks; `layout` is a shard. Errors as DimPieces::Make.
  static Result<std::shared_ptr<const ShardMap>> Make(const Layout& layout, int64_t size, int64_t ranks);

  int64_t size() const { return size_; }
  int64_t ranks() const { return ranks_; }
  int64_t length(int64_t rank) const;       // of a rank's shard
  int64_t block() const { return block_; }  // of the longest shard: what every rank's block is padded to

  // The shard of `rank` along `dim`. May be a view of `whole`. With `once`, parts of which another rank is the first
  // replica are zeros.
  at::Tensor Take(const at::Tensor& full, int64_t dim, int64_t rank, bool once) const;
  // [..., size, ...] -> [ranks * block, ...], contiguous, `dim` moved to the front; block r is the shard of rank r and
  // zeros. With `once`, parts that are no first replica are zeros.
  at::Tensor Pack(const at::Tensor& full, int64_t dim, bool once) const;
  // The reverse, from the shards that the ranks sent: [ranks * block, ...] -> [..., size, ...], contiguous. Replicas
  // are dropped but for the first; with `sum` they are added.
  at::Tensor Unpack(const at::Tensor& blocks, int64_t dim, bool sum) const;
  // A shard as a block: [..., length, ...] -> [block, ...], contiguous, zeros behind.
  at::Tensor ToBlock(const at::Tensor& shard, int64_t dim) const;
  // The reverse: a rank's block as its shard, contiguous.
  at::Tensor FromBlock(const at::Tensor& block, int64_t dim, int64_t rank) const;

 private:
  // One interval of the dim as a rank holds it.
  struct Segment {
    int64_t rank;
    int64_t local_begin;
    int64_t global_begin;
    int64_t length;
    bool first_replica;
  };

  bool plain_ = true;  // torch.chunk: segments_ is empty
  bool replicas_ = false;
  int64_t size_ = 0;
  int64_t ranks_ = 1;
  int64_t block_ = 0;
  std::vector<Segment> segments_;  // by global_begin, then rank; none is empty
  std::vector<int64_t> lengths_;   // by rank
};

}  // namespace moonshard
