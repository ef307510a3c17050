// IndexMap: which indices of a full dim each rank of an axis holds, and in which order: local index -> full index, for
// all ranks. It distinguishes a packed dim from a plain one, four heads from two, and the parts of a fused dim, all of
// which have the type "shard".
//
//   rank 0      rank 1             of
//   [0, 4)      [4, 8)             8       shard, whatever its dim is made of
//   [0, 4)      [0, 4)             4       both ranks hold the one head
//   [0, 2) [4, 6)  [2, 4) [6, 8)   8       two parts, each sharded by itself
//
// Operators that move a dim without computing (views, slices, joins) make a new map from the old one. If the result is
// not a list of intervals, or too long a list, there is no map (null), and operators that depend on it are unproven.
//
// If heads are repeated for the queries that use them, the local indices are still those of the heads, while the full
// step has `n` indices for each. Such a map corresponds to a finer one (Corresponds).
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
  static IndexMapPtr Of(const DimShards& shards);
  // `intervals` of each rank; neighbours are joined. Null for more than kMostIntervals on one rank.
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
  // Whether some index is held by several ranks.
  bool shared() const;

  // The dim becomes one with `front` full elements in front of it and `behind` behind it: [front, dim, behind] as one
  // dim.
  IndexMapPtr Flattened(int64_t front, int64_t behind) const;
  // The dim is [front, x, behind] on each rank and in full: returns the map of x. Null if it is not on some rank.
  IndexMapPtr Opened(int64_t front, int64_t behind) const;
  // Each local index `times` times in a row, as heads are repeated; the full indices stay those of the unrepeated dim.
  IndexMapPtr Repeated(int64_t times) const;
  // Local indices [begin, begin + length) of every rank, of the part of the full dim that they cover together. Null if
  // the ranks hold different numbers of indices, or do not cover one interval.
  IndexMapPtr Taken(int64_t begin, int64_t length) const;
  // One dim of these, one after the other.
  static IndexMapPtr Joined(const std::vector<IndexMapPtr>& parts);

  bool operator==(const IndexMap& other) const {
    return this == &other || (size_ == other.size_ && intervals_ == other.intervals_);
  }
  // "rank 0 holds 0..3, rank 1 holds 4..7, of 8"; only the first ranks and intervals.
  std::string ToString() const;

 private:
  IndexMap(int64_t size, std::vector<std::vector<Interval>> intervals)
      : size_(size), intervals_(std::move(intervals)) {}

  int64_t size_ = 0;
  std::vector<std::vector<Interval>> intervals_;
};

// Whether two tensors with these maps (neither null) have the same elements at the same local indices: equal maps, or
// maps of which each index of one corresponds to the same number of the other, in order: key head 1 to queries 4 to 7.
bool Corresponds(const IndexMap& a, const IndexMap& b);

}  // namespace moonshard
