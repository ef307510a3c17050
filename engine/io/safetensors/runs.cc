// Dims behind the last one that the shard has in part are contiguous in the tensor and in the shard alike. So `inner_`,
// that last dim, ends the recursion: an interval of it, with everything behind, is one run. For colwise shards of a
// matrix that is the full shard, for rowwise ones a run a row.
#include "engine/io/safetensors/runs.h"

#include <algorithm>

namespace moonshard {
namespace {

bool IsFull(const std::vector<Interval>& intervals, int64_t size) {
  return intervals.size() == 1 && intervals[0] == Interval{0, size};
}

}  // namespace

ShardRuns::ShardRuns(std::span<const int64_t> shape, std::span<const std::vector<Interval>> dims, int64_t bits)
    : shape_(shape), dims_(dims), unit_bits_(shape.size(), bits) {
  for (size_t d = shape.size(); d-- > 1;) unit_bits_[d - 1] = unit_bits_[d] * shape[d];
  while (inner_ + 1 < shape.size() && !RestIsFull(inner_ + 1)) ++inner_;
}

// The first run begins at the least index of every dim, the last one ends at the greatest of every dim. Intervals need
// not be in ascending order, so both are searched.
std::pair<uint64_t, uint64_t> ShardRuns::Span() const {
  int64_t first = 0;
  int64_t last = 0;
  for (size_t d = 0; d <= inner_; ++d) {
    int64_t least = shape_[d];
    int64_t most = 0;
    for (const Interval& i : dims_[d]) {
      if (i.length == 0) continue;
      least = std::min(least, i.begin);
      most = std::max(most, i.begin + i.length);
    }
    first += least * unit_bits_[d];
    last += (d == inner_ ? most : most - 1) * unit_bits_[d];
  }
  return {static_cast<uint64_t>(first / 8), static_cast<uint64_t>(last / 8)};
}

bool ShardRuns::FitsBytes() const {
  for (size_t d = 0; d < inner_; ++d) {
    if (unit_bits_[d] % 8 != 0) return false;
  }
  return std::ranges::all_of(dims_[inner_], [&](const Interval& i) {
    return i.begin * unit_bits_[inner_] % 8 == 0 && i.length * unit_bits_[inner_] % 8 == 0;
  });
}

std::optional<Diagnostic> ShardRuns::Walk(uint64_t begin, char* to, const RunSink& sink) const {
  char* next = to;
  return WalkDim(0, begin, next, sink);
}

bool ShardRuns::RestIsFull(size_t from) const {
  for (size_t d = from; d < shape_.size(); ++d) {
    if (!IsFull(dims_[d], shape_[d])) return false;
  }
  return true;
}

std::optional<Diagnostic> ShardRuns::WalkDim(size_t d, uint64_t begin, char*& next, const RunSink& sink) const {
  for (const Interval& interval : dims_[d]) {
    if (d == inner_) {
      const Run run{begin + static_cast<uint64_t>(interval.begin * unit_bits_[d] / 8), next,
                    static_cast<uint64_t>(interval.length * unit_bits_[d] / 8)};
      next += run.bytes;
      if (std::optional<Diagnostic> error = sink(run)) return error;
      continue;
    }
    for (int64_t i = interval.begin; i < interval.begin + interval.length; ++i) {
      const auto offset = static_cast<uint64_t>(i * unit_bits_[d] / 8);
      if (std::optional<Diagnostic> error = WalkDim(d + 1, begin + offset, next, sink)) return error;
    }
  }
  return std::nullopt;
}

}  // namespace moonshard
