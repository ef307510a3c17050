// RingSteps: the blocks of a sequence, the steps of a ring, and their traffic, against a search over all pairs of
// queries and keys.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>

#include "engine/layout/ring_steps.h"

namespace moonshard {
namespace {

// Whether a query of `rank` attends to a key of the block of rank - step.
bool AnyPair(const RingSteps& steps, std::optional<int64_t> window, int64_t rank, int64_t step) {
  if (step > rank) return false;
  const Interval queries = steps.Block(rank);
  const Interval keys = steps.Block(rank - step);
  for (int64_t query = queries.begin; query < queries.begin + queries.length; ++query) {
    for (int64_t key = keys.begin; key < keys.begin + keys.length; ++key) {
      if (key <= query && (!window || query - key < *window)) return true;
    }
  }
  return false;
}

TEST_CASE("the steps of a ring are those in which some query attends to a key") {
  for (int64_t ranks = 1; ranks <= 6; ++ranks) {
    for (int64_t length = 0; length <= 20; ++length) {
      for (int64_t w = 0; w <= 22; ++w) {
        const std::optional<int64_t> window = w == 0 ? std::nullopt : std::optional(w);
        const RingSteps steps(length, window, ranks);
        INFO(ranks << " ranks, " << length << " tokens, window " << w);
        const DimShards shards = DimShards::Make(Layout::Shard(1), length, ranks).ValueOrThrow();
        int64_t last = 0;
        for (int64_t rank = 0; rank < ranks; ++rank) {
          CHECK(steps.Block(rank).length == shards.length(rank));
          if (!shards.of(rank).empty()) CHECK(steps.Block(rank) == shards.of(rank)[0]);
          for (int64_t step = 0; step <= ranks; ++step) {
            const bool any = AnyPair(steps, window, rank, step);
            CHECK(steps.Attends(rank, step) == any);
            if (any) last = std::max(last, step);
          }
        }
        CHECK(steps.count() == last);
        CHECK(steps.Block(ranks).length == 0);
      }
    }
  }
}

TEST_CASE("a window as long as an integer can be") {
  CHECK(RingSteps(10, std::numeric_limits<int64_t>::max(), 4).count() == 3);
}

// 3, 3, 3 and 1 tokens.
TEST_CASE("the traffic of a ring of four ranks") {
  const RingSteps all(10, std::nullopt, 4);
  CHECK(RingForward(all, 0, 8) == CollectiveCount{3, 3 * 8});
  CHECK(RingForward(all, 2, 8) == CollectiveCount{3, 9 * 8});
  CHECK(RingForward(all, 3, 8) == CollectiveCount{3, 0});
  CHECK(RingBackward(all, 0, 8, 16) == CollectiveCount{6, 3 * 8});
  CHECK(RingBackward(all, 2, 8, 16) == CollectiveCount{6, 9 * 8 + 6 * 16});
  CHECK(RingBackward(all, 3, 8, 16) == CollectiveCount{6, 9 * 16});
  const RingSteps near(10, 4, 4);  // the keys of the block before and no other
  CHECK(RingForward(near, 2, 8) == CollectiveCount{1, 3 * 8});
  CHECK(RingBackward(near, 3, 8, 16) == CollectiveCount{2, 3 * 16});
  const RingSteps short_one(2, std::nullopt, 4);  // one token each on ranks 0 and 1
  CHECK(RingForward(short_one, 0, 8) == CollectiveCount{1, 8});
  CHECK(RingForward(short_one, 1, 8) == CollectiveCount{1, 0});
  CHECK(RingBackward(short_one, 3, 8, 16) == CollectiveCount{2, 0});
}

}  // namespace
}  // namespace moonshard
