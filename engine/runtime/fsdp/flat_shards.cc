// The flat buffer of a unit, for two parameters of 5 and 2 rows on 2 ranks (`chunk` is 3 and 1, `.` is padding, F the
// flags):
//
//   block of rank 0                block of rank 1
//   a0 a1 a2 | b0 | F F            a3 a4 .  | b1 | F F
//
// All blocks have one size, as collectives require, so the last rank's rows are padded. The place of each shard in a
// block is the same on every rank: nothing about it has to be communicated.
#include "engine/runtime/fsdp/flat_shards.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "engine/core/base/check.h"

namespace moonshard {

at::Tensor RowsOfRank(const at::Tensor& full, int64_t ranks, int64_t rank) {
  const int64_t chunk = (full.size(0) + ranks - 1) / ranks;
  const int64_t begin = std::min(rank * chunk, full.size(0));
  return full.narrow(0, begin, std::min(chunk, full.size(0) - begin));
}

FlatShards::FlatShards(std::vector<std::vector<int64_t>> shapes, int64_t ranks, int64_t extra)
    : ranks_(ranks), extra_(extra) {
  // Parameter-major within a block: a rank's shard of each parameter is one contiguous stretch, so it can be viewed
  // with the parameter's own shape (ShardIn), and gradients are scattered without a copy behind the collective.
  for (std::vector<int64_t>& shape : shapes) {
    Check(!shape.empty(), "a flat shard of a scalar");
    Part part;
    part.chunk = (shape[0] + ranks - 1) / ranks;
    part.width = 1;
    for (size_t d = 1; d < shape.size(); ++d) part.width *= shape[d];
    part.offset = block_;
    block_ += part.chunk * part.width;
    elements_ += shape[0] * part.width;
    part.shape = std::move(shape);
    parts_.push_back(std::move(part));
  }
  block_ += extra_;
}

int64_t FlatShards::rows(size_t i, int64_t rank) const {
  const Part& part = parts_[i];
  return std::clamp(part.shape[0] - rank * part.chunk, int64_t{0}, part.chunk);
}

at::Tensor FlatShards::ShardIn(const at::Tensor& block, size_t i, int64_t rank) const {
  const Part& part = parts_[i];
  std::vector<int64_t> shape = part.shape;
  shape[0] = rows(i, rank);
  return block.narrow(0, part.offset, shape[0] * part.width).view(shape);
}

void FlatShards::PackShards(std::span<const at::Tensor> shards, int64_t rank, at::Tensor& block) const {
  for (size_t i = 0; i < parts_.size(); ++i) {
    at::Tensor target = ShardIn(block, i, rank);
    if (shards[i].defined()) {
      target.copy_(shards[i]);
    } else {
      target.zero_();
    }
  }
}

// An all-gather delivers block after block, rank-major, while a full parameter has its rows together. This copy is the
// price of one collective for many parameters: a gather of each parameter by itself would need no copy and pay the
// latency of a collective for each.
void FlatShards::UnpackFull(const at::Tensor& all, std::span<at::Tensor> full) const {
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parts_[i];
    // Even rows: one strided copy for all ranks. Otherwise one copy per rank, of as many rows as it has.
    if (part.shape[0] == part.chunk * ranks_) {
      full[i]
          .view({ranks_, part.chunk * part.width})
          .copy_(all.view({ranks_, block_}).narrow(1, part.offset, part.chunk * part.width));
      continue;
    }
    for (int64_t r = 0; r < ranks_; ++r) {
      const int64_t length = rows(i, r);
      if (length > 0) full[i].narrow(0, r * part.chunk, length).copy_(ShardIn(all.narrow(0, r * block_, block_), i, r));
    }
  }
}

void FlatShards::PackFull(std::span<const at::Tensor> full, at::Tensor& all) const {
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parts_[i];
    if (!full[i].defined()) continue;
    for (int64_t r = 0; r < ranks_; ++r) {
      const int64_t length = rows(i, r);
      if (length > 0) ShardIn(all.narrow(0, r * block_, block_), i, r).copy_(full[i].narrow(0, r * part.chunk, length));
    }
  }
}

}  // namespace moonshard
