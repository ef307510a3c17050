#include "engine/layout/ring_steps.h"

#include <algorithm>

#include "engine/core/base/result.h"

namespace moonshard {

RingSteps::RingSteps(int64_t length, std::optional<int64_t> window, int64_t ranks, bool zigzag, int64_t inner)
    : length_(length), window_(window), inner_(inner) {
  const Layout layout = zigzag ? Layout::Zigzag(1) : Layout::Shard(1);
  const DimShards shards = DimShards::Make(layout, length, ranks / inner).ValueOrThrow();
  for (int64_t group = 0; group < ranks / inner; ++group) tokens_.push_back(shards.of(group));
  offsets_.push_back(0);
  for (int64_t offset = inner; offset < ranks; offset += inner) {
    for (int64_t rank = 0; rank < ranks; rank += inner) {
      if (Needed(rank, (rank - offset + ranks) % ranks).empty()) continue;
      offsets_.push_back(offset);
      break;
    }
  }
}

int64_t RingSteps::Source(int64_t rank, int64_t step) const {
  return (rank - offsets_[static_cast<size_t>(step)] + ranks()) % ranks();
}

int64_t RingSteps::Target(int64_t rank, int64_t step) const {
  return (rank + offsets_[static_cast<size_t>(step)]) % ranks();
}

std::vector<Interval> RingSteps::KeysOf(int64_t rank, int64_t step) const { return Needed(rank, Source(rank, step)); }

// Chunks are the same or do not overlap. The queries of a later chunk attend to the end of a chunk of keys, as far back
// as the window of the first of them reaches; so what several chunks of queries need of a chunk of keys is again its
// end.
std::vector<Interval> RingSteps::Needed(int64_t rank, int64_t source) const {
  std::vector<Interval> out;
  for (const Interval& keys : TokensOf(source)) {
    const int64_t end = keys.begin + keys.length;
    int64_t begin = end;
    for (const Interval& queries : TokensOf(rank)) {
      if (queries.begin < keys.begin) continue;
      begin = std::min(begin, window_ ? std::max(keys.begin, queries.begin - *window_ + 1) : keys.begin);
    }
    if (begin < end) out.push_back({begin, end - begin});
  }
  return out;
}

int64_t TokenCount(const std::vector<Interval>& intervals) {
  int64_t sum = 0;
  for (const Interval& interval : intervals) sum += interval.length;
  return sum;
}

CollectiveCount RingForward(const RingSteps& steps, int64_t rank, int64_t token_bytes) {
  CollectiveCount out{steps.count(), 0};
  for (int64_t step = 1; step <= steps.count(); ++step) {
    out.bytes += TokenCount(steps.KeysOf(steps.Target(rank, step), step)) * token_bytes;
  }
  return out;
}

CollectiveCount RingBackward(const RingSteps& steps, int64_t rank, int64_t token_bytes, int64_t gradient_bytes) {
  CollectiveCount out = RingForward(steps, rank, token_bytes);
  out.count *= 2;
  for (int64_t step = 1; step <= steps.count(); ++step) {
    out.bytes += TokenCount(steps.KeysOf(rank, step)) * gradient_bytes;
  }
  return out;
}

}  // namespace moonshard
