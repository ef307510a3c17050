// ShardRuns: a shard of a row-major tensor as runs, ranges of bytes that are contiguous both in the tensor and in the
// shard. Reading a shard from a file, copying a shard out of a tensor in memory and copying a shard back all iterate
// over these runs.
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
  uint64_t from = 0;   // offset of the run on the side of the tensor
  char* to = nullptr;  // address of the run on the side of the shard
  uint64_t bytes = 0;
};

using RunSink = std::function<std::optional<Diagnostic>(const Run&)>;

class ShardRuns {
 public:
  // dims[d] are the indices of dim d in the order in which the shard has them; there must be at least one dim. Both
  // spans must outlive the object. `bits`: of one element.
  ShardRuns(std::span<const int64_t> shape, std::span<const std::vector<Interval>> dims, int64_t bits);

  // Returns the offset of the first byte of the first run, and the offset after the last byte of the last run, in bytes
  // from the start of the tensor. The shard must not be empty.
  std::pair<uint64_t, uint64_t> Span() const;
  // Returns whether every run begins and ends at a byte boundary. Walk requires this.
  bool FitsBytes() const;
  // Calls `sink` for every run, in the order of the bytes of the shard. Stops at the first error of `sink` and returns
  // this error. `begin`: the offset of the tensor; `to`: the address of the shard.
  std::optional<Diagnostic> Walk(uint64_t begin, char* to, const RunSink& sink) const;

 private:
  bool RestIsFull(size_t from) const;
  std::optional<Diagnostic> WalkDim(size_t d, uint64_t begin, char*& next, const RunSink& sink) const;

  std::span<const int64_t> shape_;
  std::span<const std::vector<Interval>> dims_;
  std::vector<int64_t> unit_bits_;  // bits of one index of each dim
  size_t inner_ = 0;                // one interval of this dim is one run: all dims after this one are full
};

}  // namespace moonshard
