#include "engine/runtime/redistribute/shard_map.h"

#include <algorithm>
#include <tuple>

#include <ATen/ATen.h>

#include "engine/core/base/check.h"
#include "engine/layout/shards.h"

namespace moonshard {

// Two representations. A plain shard (torch.chunk) is computed from three numbers, because a sequence has another size
// in every call and a map is made for each: no table, and where the size divides evenly Pack and Unpack copy nothing
// that is contiguous already. Heads, replicas and packed parts are a list of segments, (rank, local begin, global
// begin, length), and every function is one loop over it.
//
// The dim is moved to the front before blocks are packed: c10d's collectives split their buffers along dim 0, and so
// need rank-major memory.

Result<std::shared_ptr<const ShardMap>> ShardMap::Make(const Layout& layout, int64_t size, int64_t ranks) {
  auto map = std::make_shared<ShardMap>();
  map->size_ = size;
  map->ranks_ = ranks;
  if (layout.is_plain_shard()) {
    map->block_ = (size + ranks - 1) / ranks;
    return std::shared_ptr<const ShardMap>(std::move(map));
  }
  Result<DimShards> shards = DimShards::Make(layout, size, ranks);
  if (!shards.ok()) return shards.diagnostics();
  map->plain_ = false;
  map->replicas_ = shards.value().replicas() > 1;
  map->block_ = shards.value().max_length();
  for (int64_t rank = 0; rank < ranks; ++rank) {
    map->lengths_.push_back(shards.value().length(rank));
    for (const DimShards::LocalPart& part : shards.value().PartsOf(rank)) {
      if (part.global.length == 0) continue;
      map->segments_.push_back({rank, part.local_begin, part.global.begin, part.global.length, part.first_replica});
    }
  }
  // Global order: Unpack writes the result from front to back, and adds replicas in rank order on every rank.
  std::ranges::sort(map->segments_, {}, [](const Segment& s) { return std::tuple(s.global_begin, s.rank); });
  return std::shared_ptr<const ShardMap>(std::move(map));
}

int64_t ShardMap::length(int64_t rank) const {
  if (!plain_) return lengths_[static_cast<size_t>(rank)];
  return std::clamp(size_ - block_ * rank, int64_t{0}, block_);
}

at::Tensor ShardMap::Take(const at::Tensor& full, int64_t dim, int64_t rank, bool first_replica_only) const {
  Check(full.size(dim) == size_, "sharding a dim of another size");
  if (plain_) return full.narrow(dim, std::min(size_, block_ * rank), length(rank));
  std::vector<int64_t> shape = full.sizes().vec();
  shape[static_cast<size_t>(dim)] = length(rank);
  // The segments of a rank cover its shard, so zeros are needed only where some are skipped.
  at::Tensor shard =
      first_replica_only && replicas_ ? at::zeros(shape, full.options()) : at::empty(shape, full.options());
  for (const Segment& s : segments_) {
    if (s.rank != rank || (first_replica_only && !s.first_replica)) continue;
    shard.narrow(dim, s.local_begin, s.length).copy_(full.narrow(dim, s.global_begin, s.length));
  }
  return shard;
}

at::Tensor ShardMap::Pack(const at::Tensor& full, int64_t dim, bool first_replica_only) const {
  Check(full.size(dim) == size_, "sharding a dim of another size");
  const at::Tensor front = full.movedim(dim, 0);
  // Even shards of torch.chunk are the blocks already.
  if (plain_ && size_ == block_ * ranks_) return front.contiguous();
  std::vector<int64_t> shape = front.sizes().vec();
  shape[0] = block_ * ranks_;
  // Zeros: what is skipped below must add nothing to a reduce-scatter. Its receiver removes the padding.
  at::Tensor blocks = at::zeros(shape, full.options());
  if (plain_) {
    blocks.narrow(0, 0, size_).copy_(front);
    return blocks;
  }
  for (const Segment& s : segments_) {
    if (first_replica_only && !s.first_replica) continue;
    blocks.narrow(0, s.rank * block_ + s.local_begin, s.length).copy_(front.narrow(0, s.global_begin, s.length));
  }
  return blocks;
}

at::Tensor ShardMap::Unpack(const at::Tensor& blocks, int64_t dim, bool add_replicas) const {
  Check(blocks.size(0) == block_ * ranks_, "joining blocks of another size");
  // Only the last shards of torch.chunk are short, so all padding is at the end.
  if (plain_) return blocks.narrow(0, 0, size_).movedim(0, dim).contiguous();
  std::vector<int64_t> shape = blocks.movedim(0, dim).sizes().vec();
  shape[static_cast<size_t>(dim)] = size_;
  at::Tensor full = at::empty(shape, blocks.options());
  for (const Segment& s : segments_) {
    if (!s.first_replica) continue;
    full.narrow(dim, s.global_begin, s.length)
        .copy_(blocks.narrow(0, s.rank * block_ + s.local_begin, s.length).movedim(0, dim));
  }
  if (!add_replicas || !replicas_) return full;
  // A second pass: every interval has its first replica by now, in whatever order the ranks hold it.
  for (const Segment& s : segments_) {
    if (s.first_replica) continue;
    full.narrow(dim, s.global_begin, s.length)
        .add_(blocks.narrow(0, s.rank * block_ + s.local_begin, s.length).movedim(0, dim));
  }
  return full;
}

at::Tensor ShardMap::ToBlock(const at::Tensor& shard, int64_t dim) const {
  const at::Tensor front = shard.movedim(dim, 0);
  if (front.size(0) == block_) return front.contiguous();
  std::vector<int64_t> shape = front.sizes().vec();
  shape[0] = block_;
  at::Tensor block = at::zeros(shape, shard.options());
  // A shard of the wrong size is reported by the collective (CollectiveUse::mismatched_size), on all ranks. Until then
  // its block needs the right size, or the exchange itself would fail on some ranks only.
  const int64_t fits = std::min(front.size(0), block_);
  block.narrow(0, 0, fits).copy_(front.narrow(0, 0, fits));
  return block;
}

at::Tensor ShardMap::FromBlock(const at::Tensor& block, int64_t dim, int64_t rank) const {
  return block.narrow(0, 0, length(rank)).movedim(0, dim).contiguous();
}

}  // namespace moonshard
