// IndexMap: which indices of a full dim each rank of an axis holds, and in which order: local index -> full index, for all
// ranks. It is what tells a dim that is packed from one that is not, four heads from two, and one part of a fused dim from
// another, where the word "shard" is the same.
//
//   rank 0      rank 1             of
//   [0, 4)      [4, 8)             8       shard, whatever its dim is made of
//   [0, 4)      [0, 4)             4       both ranks hold the one head
//   [0, 2) [4, 6)  [2, 4) [6, 8)   8       two parts, each sharded by itself
//
// Operators that move a dim without computing (views, slices, joins) make a new map of the old one; where the result is no
// list of intervals, or too long a one, there is no map (null), and what depends on it is unproven.
//
// Where heads are repeated for the queries that use them, the local indices are still those of the heads: the full step has
// `n` indices for each. A map `stands for` a finer one then (Corresponds).
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
  // Whether all ranks hold equally many.
  bool even() const;
  // Whether every rank holds the whole dim, in order.
  bool whole() const;
  // Whether some index is held by several ranks.
  bool shared() const;

  // The dim becomes one with `front` full elements in front of it and `behind` behind it: [front, dim, behind] as one dim.
  IndexMapPtr Flattened(int64_t front, int64_t behind) const;
  // The dim is [front, x, behind] in each rank and in full: the map of x. Null where it is not on some rank.
  IndexMapPtr Opened(int64_t front, int64_t behind) const;
  // Each local index `times` times in a row, as heads are repeated; the full indices are still those of what is repeated.
  IndexMapPtr Repeated(int64_t times) const;
  // Local indices [begin, begin + length) of every rank, of the full dim's part that they cover together. Null where the
  // ranks hold different numbers, or cover no one interval.
  IndexMapPtr Taken(int64_t begin, int64_t length) const;
  // One dim of these, one after the other.
  static IndexMapPtr Joined(const std::vector<IndexMapPtr>& parts);

  bool operator==(const IndexMap& other) const {
    return this == &other || (size_ == other.size_ && intervals_ == other.intervals_);
  }
  // "rank 0 holds 0..3, rank 1 holds 4..7, of 8"; the first ranks and intervals alone.
  std::string ToString() const;

 private:
  IndexMap(int64_t size, std::vector<std::vector<Interval>> intervals)
      : size_(size), intervals_(std::move(intervals)) {}

  int64_t size_ = 0;
  std::vector<std::vector<Interval>> intervals_;
};

// Whether two tensors that meet along dims with these maps (neither null) have the same elements in the same places: equal
// maps, or one whose indices stand for as many of the other, in order: key head 1 for queries 4 to 7.
bool Corresponds(const IndexMap& a, const IndexMap& b);

}  // namespace moonshard
