// The wanted shard is divided into cells: along each dim, at every index where an interval of some stored shard begins
// or ends. A stored shard has a cell in full or not at all, so covering the shard is a matter of taking each cell once.
// There are as many cells as the product of the divisions, and these are few: a dim is divided by one axis, rarely by
// two.
//
// Stored shards are tried in three passes. One that is equal to the wanted shard is read without assembling it, and
// only its bytes have a hash to compare with. One that contains it keeps the read in one file. Only then are cells
// taken from one shard after the other, in the order of the rank files, so that every process that reads the shard
// reads the same bytes.
#include "engine/io/checkpoint/cover.h"

#include <algorithm>
#include <set>

namespace moonshard {
namespace {

// A range of indices of one dim that every shard has in full or not at all.
struct Segment {
  int64_t begin = 0;
  int64_t length = 0;
  int64_t local = 0;  // where the wanted shard has it
};

// The segments of one dim of the wanted shard: its intervals, divided at `bounds`.
std::vector<Segment> SegmentsOf(const std::vector<Interval>& wanted, const std::set<int64_t>& bounds) {
  std::vector<Segment> out;
  int64_t local = 0;
  for (const Interval& interval : wanted) {
    const int64_t end = interval.begin + interval.length;
    for (int64_t at = interval.begin; at < end;) {
      const auto bound = bounds.upper_bound(at);
      const int64_t next = bound == bounds.end() ? end : std::min(*bound, end);
      out.push_back({at, next - at, local});
      local += next - at;
      at = next;
    }
  }
  return out;
}

// A segment that a stored shard has.
struct Held {
  size_t segment = 0;
  int64_t local = 0;  // where the stored shard has it
};

// Both lists ascend, so one pass over each is enough: segments before an interval are skipped, those within it are
// held. A segment never begins inside an interval and ends outside, since every bound of every stored shard divides the
// segments.
std::vector<Held> HeldOf(const std::vector<Interval>& stored, const std::vector<Segment>& segments) {
  std::vector<Held> out;
  int64_t local = 0;
  size_t s = 0;
  for (const Interval& interval : stored) {
    const int64_t end = interval.begin + interval.length;
    while (s < segments.size() && segments[s].begin < interval.begin) ++s;
    for (; s < segments.size() && segments[s].begin < end; ++s) {
      out.push_back({s, local + segments[s].begin - interval.begin});
    }
    local += interval.length;
  }
  return out;
}

void Append(std::vector<Interval>& intervals, int64_t begin, int64_t length) {
  if (!intervals.empty() && intervals.back().begin + intervals.back().length == begin) {
    intervals.back().length += length;
  } else {
    intervals.push_back({begin, length});
  }
}

class Cover {
 public:
  Cover(const ShardDims& wanted, std::span<const std::optional<ShardDims>> stored) : wanted_(wanted), stored_(stored) {
    for (size_t d = 0; d < wanted.size(); ++d) {
      std::set<int64_t> bounds;
      for (const std::optional<ShardDims>& shard : stored) {
        if (!shard) continue;
        for (const Interval& i : (*shard)[d]) bounds.insert({i.begin, i.begin + i.length});
      }
      segments_.push_back(SegmentsOf(wanted[d], bounds));
      const size_t segments = segments_.back().size();
      cells_ = segments == 0 || cells_ <= kMostCells / segments ? cells_ * segments : kMostCells + 1;
    }
    if (!too_many()) taken_.assign(cells_, false);
  }

  bool too_many() const { return cells_ > kMostCells; }

  std::optional<std::vector<Overlap>> Find() {
    if (too_many()) return std::nullopt;
    for (size_t p = 0; p < stored_.size(); ++p) {
      if (left() > 0 && stored_[p] && *stored_[p] == wanted_) Take(p);
    }
    for (size_t p = 0; p < stored_.size() && left() > 0 && out_.empty(); ++p) {
      if (stored_[p] && HasAll(*stored_[p])) Take(p);
    }
    for (size_t p = 0; p < stored_.size() && left() > 0; ++p) {
      if (stored_[p]) Take(p);
    }
    if (left() > 0) return std::nullopt;
    return std::move(out_);
  }

 private:
  static constexpr size_t kMostCells = size_t{1} << 22;

  size_t left() const { return cells_ - count_; }

  bool HasAll(const ShardDims& shard) const {
    for (size_t d = 0; d < segments_.size(); ++d) {
      if (HeldOf(shard[d], segments_[d]).size() != segments_[d].size()) return false;
    }
    return true;
  }

  // Takes from a shard the cells that are not covered yet: as one block where these are all that it shares with the
  // wanted one. Of a shard that earlier ones cover in part (shards that overlap without being equal) the other cells
  // are taken one by one: more reads, but no byte twice.
  void Take(size_t p) {
    std::vector<std::vector<Held>> held;
    size_t shared = 1;
    for (size_t d = 0; d < segments_.size(); ++d) {
      held.push_back(HeldOf((*stored_[p])[d], segments_[d]));
      shared *= held.back().size();
    }
    // The cells of the product of `held`, last dim fastest, by their places in `held`.
    std::vector<std::vector<size_t>> fresh;
    std::vector<size_t> at(segments_.size(), 0);
    for (size_t n = 0; n < shared; ++n) {
      size_t cell = 0;
      for (size_t d = 0; d < at.size(); ++d) cell = cell * segments_[d].size() + held[d][at[d]].segment;
      if (!taken_[cell]) {
        taken_[cell] = true;
        ++count_;
        fresh.push_back(at);
      }
      for (size_t d = at.size(); d-- > 0 && ++at[d] == held[d].size();) at[d] = 0;
    }
    if (fresh.size() == shared && shared > 0) {
      out_.push_back(BlockOf(p, held));
      return;
    }
    for (const std::vector<size_t>& place : fresh) {
      std::vector<std::vector<Held>> one;
      for (size_t d = 0; d < place.size(); ++d) one.push_back({held[d][place[d]]});
      out_.push_back(BlockOf(p, one));
    }
  }

  Overlap BlockOf(size_t p, const std::vector<std::vector<Held>>& held) const {
    Overlap block{p, ShardDims(held.size()), ShardDims(held.size())};
    for (size_t d = 0; d < held.size(); ++d) {
      for (const Held& h : held[d]) {
        const Segment& segment = segments_[d][h.segment];
        Append(block.stored[d], h.local, segment.length);
        Append(block.wanted[d], segment.local, segment.length);
      }
    }
    return block;
  }

  const ShardDims& wanted_;
  std::span<const std::optional<ShardDims>> stored_;
  std::vector<std::vector<Segment>> segments_;  // by dim
  size_t cells_ = 1;
  size_t count_ = 0;         // cells taken
  std::vector<bool> taken_;  // by cell, last dim fastest
  std::vector<Overlap> out_;
};

}  // namespace

std::optional<std::vector<Overlap>> CoverShard(const ShardDims& wanted,
                                               std::span<const std::optional<ShardDims>> stored) {
  return Cover(wanted, stored).Find();
}

bool IsDividedTooFinely(const ShardDims& wanted, std::span<const std::optional<ShardDims>> stored) {
  return Cover(wanted, stored).too_many();
}

}  // namespace moonshard
