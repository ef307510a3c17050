// A chunk is a range of one dim (`dim_`), one index of every dim before it and all of every dim after it: that is the
// general form of contiguous bytes of a row-major tensor that begins and ends between indices. The walk chooses the
// first dim of which an index is small enough for the target, and so passes the tensor's bytes once, in order.
//
// Elements of less than a byte set the one limit: a chunk must begin at a byte. An index of a dim before `dim_` must
// therefore be full bytes, and a range of `dim_` whose indices are not is a multiple of eight of them.
#include "engine/io/checkpoint/chunks.h"

#include <algorithm>
#include <cstring>

#include "engine/io/safetensors/reader.h"
#include "engine/io/safetensors/runs.h"

namespace moonshard {

ChunkWalk::ChunkWalk(std::span<const int64_t> shape, DType dtype, uint64_t target)
    : shape_(shape.begin(), shape.end()) {
  if (shape_.empty()) shape_.push_back(1);
  done_ = std::ranges::find(shape_, 0) != shape_.end();
  at_.assign(shape_.size(), 0);
  unit_bits_.assign(shape_.size(), BitsOf(dtype));
  if (done_) return;
  for (size_t d = shape_.size(); d-- > 1;) unit_bits_[d - 1] = unit_bits_[d] * shape_[d];
  const auto most_bits = static_cast<int64_t>(target * 8);
  // Dims before `dim_` take one index at a time, which must be full bytes.
  while (dim_ + 1 < shape_.size() && unit_bits_[dim_] > most_bits && unit_bits_[dim_] % 8 == 0) ++dim_;
  step_ = std::max<int64_t>(1, most_bits / unit_bits_[dim_]);
  // Any eight indices are full bytes.
  if (unit_bits_[dim_] % 8 != 0) step_ = std::max<int64_t>(8, step_ / 8 * 8);
}

bool ChunkWalk::Next(Chunk& chunk) {
  if (done_) return false;
  chunk.first = at_;
  chunk.lengths.assign(shape_.size(), 1);
  for (size_t d = dim_ + 1; d < shape_.size(); ++d) chunk.lengths[d] = shape_[d];
  chunk.lengths[dim_] = std::min(step_, shape_[dim_] - at_[dim_]);
  int64_t begin_bits = 0;
  for (size_t d = 0; d <= dim_; ++d) begin_bits += at_[d] * unit_bits_[d];
  chunk.begin = static_cast<uint64_t>(begin_bits / 8);
  chunk.bytes = static_cast<uint64_t>((chunk.lengths[dim_] * unit_bits_[dim_] + 7) / 8);
  at_[dim_] += chunk.lengths[dim_];
  for (size_t d = dim_; at_[d] == shape_[d]; --d) {
    at_[d] = 0;
    if (d == 0) {
      done_ = true;
      break;
    }
    ++at_[d - 1];
  }
  return true;
}

ShardDims ShardInChunk(const ShardDims& shard, const Chunk& chunk) {
  if (shard.empty()) return {{{0, 1}}};  // of a scalar
  ShardDims out(shard.size());
  for (size_t d = 0; d < shard.size(); ++d) {
    const int64_t end = chunk.first[d] + chunk.lengths[d];
    // Intervals are in order, so a binary search skips those before the chunk: an expert's or a head's shard can have
    // thousands.
    auto interval =
        std::ranges::upper_bound(shard[d], chunk.first[d], {}, [](const Interval& i) { return i.begin + i.length; });
    for (; interval != shard[d].end() && interval->begin < end; ++interval) {
      const int64_t from = std::max(interval->begin, chunk.first[d]);
      out[d].push_back({from - chunk.first[d], std::min(interval->begin + interval->length, end) - from});
    }
  }
  return out;
}

uint64_t ShareBytes(DType dtype, const ShardDims& in_chunk) {
  return static_cast<uint64_t>(ShardBytes(dtype, in_chunk));
}

std::optional<uint64_t> OneRunOf(const Chunk& chunk, DType dtype, const ShardDims& in_chunk) {
  const auto [first, last] = ShardRuns(chunk.lengths, in_chunk, BitsOf(dtype)).Span();
  return last - first == ShareBytes(dtype, in_chunk) ? std::optional(first) : std::nullopt;
}

const char* TakeFromChunk(const Chunk& chunk, DType dtype, const ShardDims& in_chunk, const char* bytes, char* to) {
  if (const std::optional<uint64_t> begin = OneRunOf(chunk, dtype, in_chunk)) return bytes + *begin;
  const ShardRuns runs(chunk.lengths, in_chunk, BitsOf(dtype));
  runs.Walk(0, to, [&](const Run& run) -> std::optional<Diagnostic> {
    std::memcpy(run.to, bytes + run.from, run.bytes);
    return std::nullopt;
  });
  return to;
}

void PutIntoChunk(const Chunk& chunk, DType dtype, const ShardDims& in_chunk, const char* from, char* bytes) {
  const ShardRuns runs(chunk.lengths, in_chunk, BitsOf(dtype));
  // Walk hands out places in what it is given as the shard; it is read from here.
  char* shard = const_cast<char*>(from);
  runs.Walk(0, shard, [&](const Run& run) -> std::optional<Diagnostic> {
    std::memcpy(bytes + run.from, run.to, run.bytes);
    return std::nullopt;
  });
}

bool ShardsAtBytes(std::span<const int64_t> shape, DType dtype, const ShardDims& shard) {
  if (BitsOf(dtype) % 8 == 0 || ShardBytes(dtype, shard) == 0 || shard.empty()) return true;
  return ShardRuns(shape, shard, BitsOf(dtype)).FitsBytes();
}

}  // namespace moonshard
