// The flat buffer of a unit, for two parameters of 5 and 2 rows on 2 ranks (`chunk` is 3 and 1, `.` is padding, F the
// flags):
//
//   block of rank 0                block of rank 1
//   a0 a1 a2 | b0 | F F            a3 a4 .  | b1 | F F
//
// All blocks have one size, as collectives require, so the last rank's rows are padded. The place of each shard in a
// block is the same on every rank: nothing about it has to be communicated.
//
// Over two axes of 2 ranks each, the inner axis shards the 5 rows into 3 and 2, and the outer axis each of these. The
// group counts ranks with the inner axis fastest, so its blocks are not in the order of the rows:
//
//   rank 0 (outer 0, inner 0)  a0 a1        rank 2 (outer 1, inner 0)  a2
//   rank 1 (outer 0, inner 1)  a3           rank 3 (outer 1, inner 1)  a4
//
// The longest shard has as many rows as with one axis of 4 ranks, since ceil(ceil(n / a) / b) = ceil(n / (a b)).
#include "engine/runtime/fsdp/flat_shards.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <ranges>
#include <utility>

#include <ATen/ATen.h>

#include "engine/core/base/check.h"

namespace moonshard {

namespace {

struct Rows {
  int64_t begin = 0;
  int64_t length = 0;
};

Rows RowsOf(int64_t rows, const std::vector<int64_t>& sizes, int64_t rank) {
  Rows out = {0, rows};
  for (int64_t ranks : std::views::reverse(sizes)) {
    const int64_t chunk = (out.length + ranks - 1) / ranks;
    const int64_t begin = std::min(rank % ranks * chunk, out.length);
    out = {out.begin + begin, std::min(chunk, out.length - begin)};
    rank /= ranks;
  }
  return out;
}

int64_t Product(const std::vector<int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

}  // namespace

at::Tensor RowsOfRank(const at::Tensor& full, const std::vector<int64_t>& sizes, int64_t rank) {
  const Rows rows = RowsOf(full.size(0), sizes, rank);
  return full.narrow(0, rows.begin, rows.length);
}

FlatShards::FlatShards(std::vector<std::vector<int64_t>> shapes, std::vector<int64_t> sizes, int64_t extra)
    : sizes_(std::move(sizes)), ranks_(Product(sizes_)), extra_(extra) {
  // Parameter-major within a block: a rank's shard of each parameter is one contiguous stretch, so it can be viewed
  // with the parameter's own shape (ShardIn), and gradients are scattered without a copy behind the collective.
  for (std::vector<int64_t>& shape : shapes) {
    Check(!shape.empty(), "a flat shard of a scalar");
    Part part;
    part.chunk = (shape[0] + ranks_ - 1) / ranks_;
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

int64_t FlatShards::rows(size_t i, int64_t rank) const { return RowsOf(parts_[i].shape[0], sizes_, rank).length; }

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
    // Even rows: one strided copy for all ranks, of which the axes are in reverse order in the rows. Otherwise one copy
    // per rank, of as many rows as it has.
    if (part.shape[0] == part.chunk * ranks_) {
      std::vector<int64_t> blocks = sizes_;
      blocks.push_back(block_);
      std::vector<int64_t> rows(sizes_.rbegin(), sizes_.rend());
      rows.push_back(part.chunk * part.width);
      std::vector<int64_t> order(sizes_.size());
      std::iota(order.rbegin(), order.rend(), 0);
      order.push_back(static_cast<int64_t>(sizes_.size()));
      full[i].view(rows).copy_(all.view(blocks).narrow(-1, part.offset, part.chunk * part.width).permute(order));
      continue;
    }
    for (int64_t r = 0; r < ranks_; ++r) {
      const Rows rows = RowsOf(part.shape[0], sizes_, r);
      if (rows.length == 0) continue;
      full[i].narrow(0, rows.begin, rows.length).copy_(ShardIn(all.narrow(0, r * block_, block_), i, r));
    }
  }
}

void FlatShards::PackFull(std::span<const at::Tensor> full, at::Tensor& all) const {
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parts_[i];
    if (!full[i].defined()) continue;
    for (int64_t r = 0; r < ranks_; ++r) {
      const Rows rows = RowsOf(part.shape[0], sizes_, r);
      if (rows.length == 0) continue;
      ShardIn(all.narrow(0, r * block_, block_), i, r).copy_(full[i].narrow(0, rows.begin, rows.length));
    }
  }
}

}  // namespace moonshard
