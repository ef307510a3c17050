// Shards: which indices of one tensor dim each rank of an axis holds, for every form of shard. Slicing a weight,
// gathering an activation and reading a checkpoint all follow this one table.
//
//   shard(d)            torch.chunk: ceil(size / n) elements each, the last shards shorter or empty
//   shard(d, heads=h)   h % n == 0: h/n heads each;  n % h == 0: rank r has head r*h/n, so n/h consecutive ranks have
//                       the same head
//   packed(d, parts)    each part as above; the local tensor has the rank's shards of the parts in order
//   shard(d, zigzag)    of 2n chunks of ceil(size / 2n) elements, the last ones shorter or empty, chunk r and then
//                       chunk 2n - 1 - r
//   shard(d, zigzag, inner=i)  of n ranks, the shard(d, zigzag) of group r / i over n / i groups, and of it, two chunks
//                       behind each other, shard r % i of i as torch.chunk has it
//   another shard with inner=i  shard r % i of i: the groups of i consecutive ranks each have the full dim
//   shard(d, owner=r)   the full dim on rank r, an empty shard on the other ranks; on an axis of one rank, this rank is
//                       the owner for every r, so that a plan with owners is valid for tp=1
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/base/result.h"
#include "engine/layout/layout.h"

namespace moonshard {

// Indices [begin, begin + length) of a dim.
struct Interval {
  int64_t begin = 0;
  int64_t length = 0;
  bool operator==(const Interval&) const = default;
};

class DimShards {
 public:
  // Returns the shards of a dim of `size` elements over `ranks` ranks. `layout` must be a shard. Errors: kHeadsDoNotFit
  // (neither of heads and ranks divides the other; or size is not a multiple of heads), kPackedDoesNotFit (a part below
  // 0, or parts that do not add up to size), kNoSuchOwner.
  static Result<DimShards> Make(const Layout& layout, int64_t size, int64_t ranks);

  int64_t size() const { return size_; }
  int64_t ranks() const { return static_cast<int64_t>(intervals_.size()); }
  // Returns the indices that `rank` holds, in the order of its local tensor; empty intervals are left out, adjacent
  // intervals are joined.
  const std::vector<Interval>& of(int64_t rank) const { return intervals_[static_cast<size_t>(rank)]; }
  int64_t length(int64_t rank) const;
  int64_t max_length() const;
  // Returns the number of consecutive ranks that hold the same shard; 1 unless there are fewer heads than ranks. If the
  // parts have different numbers, returns the largest; PartsOf has the number of each part.
  int64_t replicas() const { return replicas_; }
  // Returns for each part, in order, the interval that `rank` holds, its begin in the local tensor, and the number of
  // consecutive ranks that hold the same interval. A dim without parts is one part, or two if it is zigzag: the early
  // and the late chunk.
  struct LocalPart {
    Interval global;  // of the full dim
    int64_t local_begin = 0;
    int64_t replicas = 1;
    bool first_replica = true;  // `rank` is the first rank with this shard; only the first rank counts the shard
  };
  std::vector<LocalPart> PartsOf(int64_t rank) const;
  // Whether the shards are those of torch.chunk, so that an all-gather in rank order gives the full dim.
  bool is_plain() const { return plain_; }

 private:
  int64_t size_ = 0;
  int64_t replicas_ = 1;
  bool plain_ = true;
  std::vector<std::vector<Interval>> intervals_;
  std::vector<std::vector<LocalPart>> parts_;
};

// Returns the axis sizes up to `most` that divide `heads` or are multiples of `heads`, smallest first.
std::vector<int64_t> LegalAxisSizes(int64_t heads, int64_t most);

}  // namespace moonshard
