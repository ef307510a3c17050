// IndexMap: the indices of a full dim that each rank of an axis holds, in the order of the local indices. Different
// maps distinguish dims that all have the type "shard": a packed dim from a plain dim, four heads from two, the parts
// of a fused dim from each other.
//
//   rank 0           rank 1            full size
//   [0, 4)           [4, 8)            8            a plain shard
//   [0, 4)           [0, 4)            4            one head of 4 features that both ranks hold
//   [0, 2) [4, 6)    [2, 4) [6, 8)     8            two parts, each sharded by itself
//
// For operators that move a dim without computing (views, slices, concatenations), the new map is computed from the old
// map. If the new map is not a list of intervals, or the list is too long, the new map is null, and operators that
// depend on this map are unproven.
//
// Key and value heads may be repeated for the queries that use them. The map then still has the full indices of the
// unrepeated heads, while the full tensor at tp=1 has several indices for each head. Such a map corresponds to the
// finer map of the queries (Corresponds).
// Stage before: layout/shards.h. Stage after: axis_type.h, and the rules.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/layout/shards.h"

namespace moonshard {

class IndexMap;
using IndexMapPtr = std::shared_ptr<const IndexMap>;

class IndexMap {
 public:
  // Returns the map of a dim that a layout shards; null in the same case as Make.
  static IndexMapPtr Of(const DimShards& shards);
  // Returns the map of a full dim of size `size`. `intervals` has a list for each rank, in the order of the local
  // indices; Make joins adjacent intervals. Null if the list of a rank has more than kMostIntervals intervals.
  static IndexMapPtr Make(int64_t size, std::vector<std::vector<Interval>> intervals);
  static constexpr size_t kMostIntervals = 4096;

  int64_t size() const { return size_; }  // of the full dim
  int64_t ranks() const { return static_cast<int64_t>(intervals_.size()); }
  int64_t length(int64_t rank) const;
  const std::vector<Interval>& of(int64_t rank) const { return intervals_[static_cast<size_t>(rank)]; }
  // Whether all ranks hold the same number of indices.
  bool even() const;
  // Whether every rank holds the full dim, in order.
  bool whole() const;
  // Whether rank 0 holds the first indices, rank 1 the next, and so on, all of them in order.
  bool in_order() const;
  // Whether one rank holds the full dim, of at least one index, and the other ranks nothing.
  bool owned() const;
  // Whether several ranks hold the same index.
  bool shared() const;

  // The map after [front, dim, behind] is flattened into one dim; `front` and `behind` are the sizes of unsharded dims.
  // Null if the result has too many intervals.
  IndexMapPtr Flattened(int64_t front, int64_t behind) const;
  // The inverse of Flattened: the local dim of each rank and the full dim are [front, x, behind] flattened; returns the
  // map of x. Null if the indices of a rank do not have this form.
  IndexMapPtr Opened(int64_t front, int64_t behind) const;
  // The map after each local index is repeated `times` times in a row (repeat_interleave of heads). The map keeps the
  // full indices of the unrepeated dim. Null if the result has too many intervals.
  IndexMapPtr Repeated(int64_t times) const;
  // The map after a slice [begin, begin + length) of the local indices of every rank. The new full dim is the interval
  // of the old full dim that the slices of all ranks cover together. Null if the ranks hold different numbers of
  // indices, or if the slices do not cover one interval.
  IndexMapPtr Taken(int64_t begin, int64_t length) const;
  // The map after rank r has kept its local indices positions[r] alone, if the new full dim consists of the indices
  // that some rank has kept. Null if the result has too many intervals. Requires one list for each rank.
  IndexMapPtr Kept(const std::vector<std::vector<Interval>>& positions) const;
  // The map after a concatenation of `parts` along the dim. Null if one of the maps is null or has another number of
  // ranks.
  static IndexMapPtr Joined(const std::vector<IndexMapPtr>& parts);

  bool operator==(const IndexMap& other) const {
    return this == &other || (size_ == other.size_ && intervals_ == other.intervals_);
  }
  // "rank 0 holds 0..3, rank 1 holds 4..7, of 8 indices"; only the first ranks and intervals.
  std::string ToString() const;

 private:
  IndexMap(int64_t size, std::vector<std::vector<Interval>> intervals)
      : size_(size), intervals_(std::move(intervals)) {}

  int64_t size_ = 0;
  std::vector<std::vector<Interval>> intervals_;
};

// Whether two tensors with these maps have matching elements at the same local indices: the maps are equal, or each
// index of one full dim corresponds to the same number of consecutive indices of the other, as key head 1 to query
// heads 4 to 7.
bool Corresponds(const IndexMap& a, const IndexMap& b);

}  // namespace moonshard
