// Shards: which indices of one tensor dim each rank of an axis holds, for every form of shard. Slicing a weight,
// gathering an activation and reading a checkpoint all follow this one table.
//
//   shard(d)            torch.chunk: ceil(size / n) each, the last ones shorter or empty
//   shard(d, heads=h)   h % n == 0: h/n heads each;  n % h == 0: head r*h/n, the same on n/h consecutive ranks
//   packed(d, parts)    each part as above; a rank's shard is its shards of the parts, one after the other
//   shard(d, owner=r)   all of it on rank r, an empty shard on the others; the rank of an axis of one owns what
//                       any would, so that a plan holds at tp=1
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
  // The shards of a dim of `size` elements over `ranks` ranks. `layout` is a shard.
  // Errors: kHeadsDoNotFit (neither divides the other, with the legal numbers of ranks; or size is not a multiple of
  // heads), kPackedDoesNotFit (a part below 0, or parts that do not add up to size), kNoSuchOwner.
  static Result<DimShards> Make(const Layout& layout, int64_t size, int64_t ranks);

  int64_t size() const { return size_; }
  int64_t ranks() const { return static_cast<int64_t>(intervals_.size()); }
  // This rank's indices in the order in which its local tensor holds them; empty intervals are left out, neighbours
  // are joined.
  const std::vector<Interval>& of(int64_t rank) const { return intervals_[static_cast<size_t>(rank)]; }
  int64_t length(int64_t rank) const;
  int64_t max_length() const;
  // How many consecutive ranks hold the same shard; 1 unless there are fewer heads than ranks. Where the parts differ
  // in it, this is the largest; PartsOf has each.
  int64_t replicas() const { return replicas_; }
  // For each part in order: how many consecutive ranks hold the same shard of it, and its interval within the local
  // shard of `rank`. A plain dim is one part.
  struct LocalPart {
    Interval global;  // of the full dim
    int64_t local_begin = 0;
    int64_t replicas = 1;
    bool first_replica = true;  // whether this rank represents the shard where each shard may count once
  };
  std::vector<LocalPart> PartsOf(int64_t rank) const;
  // Whether every rank's shard is one interval and all are torch.chunk's: gathering them in rank order gives the full
  // dim.
  bool is_plain() const { return plain_; }

 private:
  int64_t size_ = 0;
  int64_t replicas_ = 1;
  bool plain_ = true;
  std::vector<std::vector<Interval>> intervals_;
  std::vector<std::vector<LocalPart>> parts_;
};

// Sizes of an axis that fit `heads` heads, smallest first, at most `most`: those that divide it and its multiples.
std::vector<int64_t> LegalAxisSizes(int64_t heads, int64_t most);

}  // namespace moonshard
