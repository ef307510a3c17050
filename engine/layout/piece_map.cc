#include "engine/layout/piece_map.h"

#include <algorithm>
#include <tuple>

#include <ATen/ATen.h>

#include "engine/base/check.h"
#include "engine/plan/pieces.h"

namespace moonshard {

Result<std::shared_ptr<const PieceMap>> PieceMap::Make(const Layout& layout, int64_t size, int64_t ranks) {
  auto map = std::make_shared<PieceMap>();
  map->size_ = size;
  map->ranks_ = ranks;
  if (layout.is_plain_shard()) {
    map->block_ = (size + ranks - 1) / ranks;
    return std::shared_ptr<const PieceMap>(std::move(map));
  }
  Result<DimPieces> pieces = DimPieces::Make(layout, size, ranks);
  if (!pieces.ok()) return pieces.diagnostics();
  map->plain_ = false;
  map->replicas_ = pieces.value().replicas() > 1;
  map->block_ = pieces.value().max_length();
  for (int64_t rank = 0; rank < ranks; ++rank) {
    map->lengths_.push_back(pieces.value().length(rank));
    for (const DimPieces::LocalPart& part : pieces.value().PartsOf(rank)) {
      if (part.global.length == 0) continue;
      map->segments_.push_back({rank, part.local_begin, part.global.begin, part.global.length, part.first_replica});
    }
  }
  std::ranges::sort(map->segments_, {}, [](const Segment& s) { return std::tuple(s.global_begin, s.rank); });
  return std::shared_ptr<const PieceMap>(std::move(map));
}

int64_t PieceMap::length(int64_t rank) const {
  if (!plain_) return lengths_[static_cast<size_t>(rank)];
  return std::clamp(size_ - block_ * rank, int64_t{0}, block_);
}

at::Tensor PieceMap::Take(const at::Tensor& whole, int64_t dim, int64_t rank, bool once) const {
  Check(whole.size(dim) == size_, "cutting a dim of another size");
  if (plain_) return whole.narrow(dim, std::min(size_, block_ * rank), length(rank));
  std::vector<int64_t> shape = whole.sizes().vec();
  shape[static_cast<size_t>(dim)] = length(rank);
  at::Tensor piece = once && replicas_ ? at::zeros(shape, whole.options()) : at::empty(shape, whole.options());
  for (const Segment& s : segments_) {
    if (s.rank != rank || (once && !s.first_replica)) continue;
    piece.narrow(dim, s.local_begin, s.length).copy_(whole.narrow(dim, s.global_begin, s.length));
  }
  return piece;
}

at::Tensor PieceMap::Pack(const at::Tensor& whole, int64_t dim, bool once) const {
  Check(whole.size(dim) == size_, "cutting a dim of another size");
  const at::Tensor front = whole.movedim(dim, 0);
  if (plain_ && size_ == block_ * ranks_) return front.contiguous();
  std::vector<int64_t> shape = front.sizes().vec();
  shape[0] = block_ * ranks_;
  at::Tensor blocks = at::zeros(shape, whole.options());
  if (plain_) {
    blocks.narrow(0, 0, size_).copy_(front);
    return blocks;
  }
  for (const Segment& s : segments_) {
    if (once && !s.first_replica) continue;
    blocks.narrow(0, s.rank * block_ + s.local_begin, s.length).copy_(front.narrow(0, s.global_begin, s.length));
  }
  return blocks;
}

at::Tensor PieceMap::Unpack(const at::Tensor& blocks, int64_t dim, bool sum) const {
  Check(blocks.size(0) == block_ * ranks_, "joining blocks of another size");
  // Only the last pieces of torch.chunk are short, so the whole lies in front.
  if (plain_) return blocks.narrow(0, 0, size_).movedim(0, dim).contiguous();
  std::vector<int64_t> shape = blocks.movedim(0, dim).sizes().vec();
  shape[static_cast<size_t>(dim)] = size_;
  at::Tensor whole = at::empty(shape, blocks.options());
  for (const Segment& s : segments_) {
    if (!s.first_replica) continue;
    whole.narrow(dim, s.global_begin, s.length)
        .copy_(blocks.narrow(0, s.rank * block_ + s.local_begin, s.length).movedim(0, dim));
  }
  if (!sum || !replicas_) return whole;
  for (const Segment& s : segments_) {
    if (s.first_replica) continue;
    whole.narrow(dim, s.global_begin, s.length)
        .add_(blocks.narrow(0, s.rank * block_ + s.local_begin, s.length).movedim(0, dim));
  }
  return whole;
}

at::Tensor PieceMap::ToBlock(const at::Tensor& piece, int64_t dim) const {
  const at::Tensor front = piece.movedim(dim, 0);
  if (front.size(0) == block_) return front.contiguous();
  std::vector<int64_t> shape = front.sizes().vec();
  shape[0] = block_;
  at::Tensor block = at::zeros(shape, piece.options());
  // A piece that is too long is the caller's to report (CollectiveUse::misfit); its block must still be a block.
  const int64_t fits = std::min(front.size(0), block_);
  block.narrow(0, 0, fits).copy_(front.narrow(0, 0, fits));
  return block;
}

at::Tensor PieceMap::FromBlock(const at::Tensor& block, int64_t dim, int64_t rank) const {
  return block.narrow(0, 0, length(rank)).movedim(0, dim).contiguous();
}

}  // namespace moonshard
