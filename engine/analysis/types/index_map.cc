// Intervals are kept in the order of the local indices and joined where one continues the other, so that equal maps
// have equal lists.
//
// A view keeps the order of elements in memory. With F elements in front of a dim, B behind it, n local and N full
// indices, the element (f, x, b) lies at (f n + x) B + b of the local memory and at (f N + map(x)) B + b of the full
// one. Flattened dims are read off that formula. Opening is its inverse: the dim is [F, x, B] if its runs begin and end
// at multiples of B and its F copies differ by N alone.
#include "engine/analysis/types/index_map.h"

#include <algorithm>
#include <optional>

#include "engine/core/base/text.h"

namespace moonshard {
namespace {

using Intervals = std::vector<Interval>;

void Append(Intervals& intervals, Interval next) {
  if (next.length == 0) return;
  if (!intervals.empty() && intervals.back().begin + intervals.back().length == next.begin) {
    intervals.back().length += next.length;
  } else {
    intervals.push_back(next);
  }
}

int64_t LengthOf(const Intervals& intervals) {
  int64_t sum = 0;
  for (const Interval& one : intervals) sum += one.length;
  return sum;
}

// Local indices [begin, begin + length).
Intervals Piece(const Intervals& intervals, int64_t begin, int64_t length) {
  Intervals out;
  int64_t at = 0;
  for (const Interval& one : intervals) {
    const int64_t from = std::max(begin, at);
    const int64_t to = std::min(begin + length, at + one.length);
    if (from < to) Append(out, {one.begin + from - at, to - from});
    at += one.length;
  }
  return out;
}

// The blocks of `behind` elements that the intervals are made of, counted in blocks; nothing where one is cut.
std::optional<Intervals> InBlocks(const Intervals& intervals, int64_t behind) {
  Intervals out;
  for (const Interval& one : intervals) {
    if (one.begin % behind != 0 || one.length % behind != 0) return std::nullopt;
    Append(out, {one.begin / behind, one.length / behind});
  }
  return out;
}

// What x is where `intervals` are [front, x]: the first copy, of which the others are shifted by `full`.
std::optional<Intervals> OneCopy(const Intervals& intervals, int64_t front, int64_t full) {
  const int64_t length = LengthOf(intervals);
  if (length % front != 0) return std::nullopt;
  const int64_t own = length / front;
  const Intervals first = Piece(intervals, 0, own);
  for (const Interval& one : first) {
    if (one.begin + one.length > full) return std::nullopt;
  }
  for (int64_t copy = 1; copy < front; ++copy) {
    Intervals shifted = first;
    for (Interval& one : shifted) one.begin += copy * full;
    if (Piece(intervals, copy * own, own) != shifted) return std::nullopt;
  }
  return first;
}

}  // namespace

IndexMapPtr IndexMap::Make(int64_t size, std::vector<std::vector<Interval>> intervals) {
  for (Intervals& one : intervals) {
    if (one.size() > kMostIntervals) return nullptr;
    Intervals joined;
    for (const Interval& next : one) Append(joined, next);
    one = std::move(joined);
  }
  return IndexMapPtr(new IndexMap(size, std::move(intervals)));
}

IndexMapPtr IndexMap::Of(const DimShards& shards) {
  std::vector<Intervals> intervals;
  for (int64_t rank = 0; rank < shards.ranks(); ++rank) intervals.push_back(shards.of(rank));
  return Make(shards.size(), std::move(intervals));
}

int64_t IndexMap::length(int64_t rank) const { return LengthOf(of(rank)); }

bool IndexMap::even() const {
  return std::ranges::all_of(intervals_, [&](const Intervals& one) { return LengthOf(one) == length(0); });
}

bool IndexMap::whole() const {
  return std::ranges::all_of(intervals_, [&](const Intervals& one) { return one == Intervals{{0, size_}}; });
}

bool IndexMap::in_order() const {
  int64_t next = 0;
  for (const Intervals& one : intervals_) {
    if (one.empty()) continue;
    if (one.size() > 1 || one.front().begin != next) return false;
    next += one.front().length;
  }
  return next == size_;
}

bool IndexMap::owned() const {
  size_t owners = 0;
  for (const Intervals& one : intervals_) {
    if (one.empty()) continue;
    if (one != Intervals{{0, size_}}) return false;
    ++owners;
  }
  return owners == 1 && ranks() > 1;
}

bool IndexMap::shared() const {
  Intervals all;
  for (const Intervals& one : intervals_) all.insert(all.end(), one.begin(), one.end());
  std::ranges::sort(all, {}, &Interval::begin);
  for (size_t i = 1; i < all.size(); ++i) {
    if (all[i - 1].begin + all[i - 1].length > all[i].begin) return true;
  }
  return false;
}

IndexMapPtr IndexMap::Flattened(int64_t front, int64_t behind) const {
  std::vector<Intervals> out;
  for (const Intervals& one : intervals_) {
    if (one.size() * static_cast<size_t>(front) > kMostIntervals) return nullptr;
    Intervals& made = out.emplace_back();
    for (int64_t copy = 0; copy < front; ++copy) {
      for (const Interval& next : one) made.push_back({(copy * size_ + next.begin) * behind, next.length * behind});
    }
  }
  return Make(size_ * front * behind, std::move(out));
}

IndexMapPtr IndexMap::Opened(int64_t front, int64_t behind) const {
  if (front <= 0 || behind <= 0 || size_ % (front * behind) != 0) return nullptr;
  const int64_t full = size_ / (front * behind);
  std::vector<Intervals> out;
  for (const Intervals& one : intervals_) {
    std::optional<Intervals> made = InBlocks(one, behind);
    if (made && front > 1) made = OneCopy(*made, front, full);
    if (!made) return nullptr;
    out.push_back(std::move(*made));
  }
  return Make(full, std::move(out));
}

IndexMapPtr IndexMap::Repeated(int64_t times) const {
  std::vector<Intervals> out;
  for (int64_t rank = 0; rank < ranks(); ++rank) {
    if (length(rank) * times > static_cast<int64_t>(kMostIntervals)) return nullptr;
    Intervals& made = out.emplace_back();
    for (const Interval& one : of(rank)) {
      for (int64_t i = 0; i < one.length; ++i) {
        made.insert(made.end(), static_cast<size_t>(times), Interval{one.begin + i, 1});
      }
    }
  }
  return Make(size_, std::move(out));
}

IndexMapPtr IndexMap::Taken(int64_t begin, int64_t length) const {
  if (!even()) return nullptr;
  std::vector<Intervals> out;
  Intervals all;
  for (const Intervals& one : intervals_) {
    out.push_back(Piece(one, begin, length));
    all.insert(all.end(), out.back().begin(), out.back().end());
  }
  if (all.empty()) return nullptr;
  std::ranges::sort(all, {}, &Interval::begin);
  int64_t end = all.front().begin;
  for (const Interval& one : all) {
    if (one.begin > end) return nullptr;
    end = std::max(end, one.begin + one.length);
  }
  const int64_t first = all.front().begin;
  for (Intervals& one : out) {
    for (Interval& next : one) next.begin -= first;
  }
  return Make(end - first, std::move(out));
}

IndexMapPtr IndexMap::Kept(const std::vector<std::vector<Interval>>& positions) const {
  std::vector<Intervals> kept;
  Intervals all;
  for (size_t rank = 0; rank < intervals_.size(); ++rank) {
    Intervals& of_rank = kept.emplace_back();
    for (const Interval& at : positions[rank]) {
      for (const Interval& one : Piece(intervals_[rank], at.begin, at.length)) Append(of_rank, one);
    }
    all.insert(all.end(), of_rank.begin(), of_rank.end());
  }
  // The indices that are kept, once each and in order; an index becomes the number of those in front of it.
  std::ranges::sort(all, {}, &Interval::begin);
  Intervals joined;
  for (const Interval& next : all) {
    const int64_t end = joined.empty() ? 0 : joined.back().begin + joined.back().length;
    const int64_t begin = joined.empty() ? next.begin : std::max(next.begin, end);
    Append(joined, {begin, std::max(next.begin + next.length - begin, int64_t{0})});
  }
  for (Intervals& of_rank : kept) {
    Intervals numbered;
    for (const Interval& one : of_rank) {
      int64_t before = 0;
      for (const Interval& other : joined) {
        if (other.begin + other.length <= one.begin) {
          before += other.length;
        } else if (other.begin < one.begin) {
          before += one.begin - other.begin;
        }
      }
      Append(numbered, {before, one.length});
    }
    of_rank = std::move(numbered);
  }
  return Make(LengthOf(joined), std::move(kept));
}

IndexMapPtr IndexMap::Joined(const std::vector<IndexMapPtr>& parts) {
  std::vector<Intervals> out;
  int64_t size = 0;
  for (const IndexMapPtr& part : parts) {
    if (part == nullptr || (!out.empty() && out.size() != static_cast<size_t>(part->ranks()))) return nullptr;
    out.resize(static_cast<size_t>(part->ranks()));
    for (size_t rank = 0; rank < out.size(); ++rank) {
      for (const Interval& one : part->intervals_[rank]) out[rank].push_back({one.begin + size, one.length});
    }
    size += part->size_;
  }
  return Make(size, std::move(out));
}

std::string IndexMap::ToString() const {
  constexpr size_t kRanks = 2;
  constexpr size_t kIntervals = 3;
  std::vector<std::string> ranks;
  for (size_t rank = 0; rank < std::min(kRanks, intervals_.size()); ++rank) {
    std::string text = "rank " + std::to_string(rank) + " holds ";
    const Intervals& own = intervals_[rank];
    for (size_t i = 0; i < std::min(kIntervals, own.size()); ++i) {
      text += (i == 0 ? "" : ", ") + std::to_string(own[i].begin);
      if (own[i].length > 1) text += ".." + std::to_string(own[i].begin + own[i].length - 1);
    }
    ranks.push_back(text + (own.size() > kIntervals ? ", ..." : own.empty() ? "nothing" : ""));
  }
  return Join(ranks, ", ") + (intervals_.size() > kRanks ? ", ..." : "") + ", of " + std::to_string(size_) + " indices";
}

namespace {

// coarse(t) == fine(t) / times on every rank.
bool StandsFor(const IndexMap& coarse, const IndexMap& fine, int64_t times) {
  for (int64_t rank = 0; rank < fine.ranks(); ++rank) {
    Intervals expected;
    for (const Interval& one : fine.of(rank)) {
      if (expected.size() > IndexMap::kMostIntervals) return false;
      for (int64_t i = 0; i < one.length; ++i) expected.push_back({(one.begin + i) / times, 1});
    }
    size_t at = 0;
    for (const Interval& one : coarse.of(rank)) {
      for (int64_t i = 0; i < one.length; ++i, ++at) {
        if (at >= expected.size() || expected[at].begin != one.begin + i) return false;
      }
    }
    if (at != expected.size()) return false;
  }
  return true;
}

}  // namespace

bool Corresponds(const IndexMap& a, const IndexMap& b) {
  if (a == b) return true;
  if (a.ranks() != b.ranks() || a.size() == 0 || b.size() == 0 || a.size() == b.size()) return false;
  const IndexMap& fine = a.size() > b.size() ? a : b;
  const IndexMap& coarse = a.size() > b.size() ? b : a;
  return fine.size() % coarse.size() == 0 && StandsFor(coarse, fine, fine.size() / coarse.size());
}

}  // namespace moonshard
