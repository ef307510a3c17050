// ShardRuns: a shard of a row-major tensor as the runs of bytes that are neighbours both in the tensor and in the
// shard. Reading a shard from a file, copying one out of memory and putting one back all walk these runs.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/core/base/diagnostic.h"
#include "engine/layout/shards.h"

namespace moonshard {

struct Run {
  uint64_t from = 0;  // offset of the tensor's side
  char* to = nullptr;
  uint64_t bytes = 0;
};

using RunSink = std::function<std::optional<Diagnostic>(const Run&)>;

class ShardRuns {
 public:
  // dims[d] are the indices of dim d in the order in which the shard holds them; there is at least one dim. Both spans
  // must outlive this. `bits`: of one element.
  ShardRuns(std::span<const int64_t> shape, std::span<const std::vector<Interval>> dims, int64_t bits);

  // Bytes from the first run's begin to the last run's end, as offsets from the tensor's begin; the shard is not empty.
  std::pair<uint64_t, uint64_t> Span() const;
  // Whether every run begins and ends at a byte. Without it there is no Walk.
  bool FitsBytes() const;
  // Every run in the order of the shard's bytes, until the sink returns an error, which is returned. The tensor begins
  // at `begin`, the shard at `to`.
  std::optional<Diagnostic> Walk(uint64_t begin, char* to, const RunSink& sink) const;

 private:
  bool RestIsFull(size_t from) const;
  std::optional<Diagnostic> WalkDim(size_t d, uint64_t begin, char*& next, const RunSink& sink) const;

  std::span<const int64_t> shape_;
  std::span<const std::vector<Interval>> dims_;
  std::vector<int64_t> unit_bits_;  // of one index of each dim
  size_t inner_ = 0;                // dims from here on make one run: all but this one are full
};

}  // namespace moonshard
