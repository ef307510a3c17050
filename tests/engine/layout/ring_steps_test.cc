// RingSteps: the tokens of the ranks, the steps of a ring, and their traffic, against a search over all pairs of
// queries and keys.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <vector>

#include "engine/layout/ring_steps.h"

namespace moonshard {
namespace {

std::vector<int64_t> PositionsOf(const std::vector<Interval>& intervals) {
  std::vector<int64_t> out;
  for (const Interval& interval : intervals) {
    for (int64_t i = 0; i < interval.length; ++i) out.push_back(interval.begin + i);
  }
  return out;
}

// The keys of `source` to which some query of `rank` attends, in order.
std::vector<int64_t> KeysBySearch(const RingSteps& steps, std::optional<int64_t> window, int64_t rank, int64_t source) {
  std::vector<int64_t> out;
  const std::vector<int64_t> queries = PositionsOf(steps.TokensOf(rank));
  for (const int64_t key : PositionsOf(steps.TokensOf(source))) {
    const auto attends = [&](int64_t query) { return key <= query && (!window || query - key < *window); };
    if (std::ranges::any_of(queries, attends)) out.push_back(key);
  }
  return out;
}

TEST_CASE("the steps of a ring are those in which some query attends to a key") {
  for (const bool zigzag : {false, true}) {
    for (int64_t ranks = 1; ranks <= 6; ++ranks) {
      for (int64_t length = 0; length <= 20; ++length) {
        for (int64_t w = 0; w <= 22; ++w) {
          const std::optional<int64_t> window = w == 0 ? std::nullopt : std::optional(w);
          const RingSteps steps(length, window, ranks, zigzag);
          INFO(ranks << " ranks, " << length << " tokens, window " << w << (zigzag ? ", zigzag" : ""));
          const Layout layout = zigzag ? Layout::Zigzag(1) : Layout::Shard(1);
          const DimShards shards = DimShards::Make(layout, length, ranks).ValueOrThrow();
          std::set<int64_t> offsets;  // at which some rank needs a key
          for (int64_t rank = 0; rank < ranks; ++rank) {
            CHECK(steps.TokensOf(rank) == shards.of(rank));
            CHECK(steps.Source(rank, 0) == rank);
            for (int64_t offset = 1; offset < ranks; ++offset) {
              if (!KeysBySearch(steps, window, rank, (rank - offset + ranks) % ranks).empty()) offsets.insert(offset);
            }
          }
          REQUIRE(steps.count() == static_cast<int64_t>(offsets.size()));
          int64_t last = 0;
          for (int64_t step = 0; step <= steps.count(); ++step) {
            const int64_t offset = (ranks - steps.Source(0, step)) % ranks;
            CHECK((step == 0 || (offset > last && offsets.contains(offset))));
            last = offset;
            for (int64_t rank = 0; rank < ranks; ++rank) {
              const int64_t source = steps.Source(rank, step);
              CHECK(source == (rank - offset + ranks) % ranks);
              CHECK(steps.Target(source, step) == rank);
              CHECK(PositionsOf(steps.KeysOf(rank, step)) == KeysBySearch(steps, window, rank, source));
            }
          }
        }
      }
    }
  }
}

// Groups of ranks that exchange heads: each rank does what the rank of its group's number does on a ring of groups.
TEST_CASE("the steps of a ring between groups are those of a ring of as many ranks") {
  for (const int64_t inner : {2, 3}) {
    for (int64_t groups = 1; groups <= 4; ++groups) {
      for (int64_t length = 0; length <= 20; ++length) {
        for (const std::optional<int64_t> window : {std::optional<int64_t>(), std::optional<int64_t>(3)}) {
          const RingSteps of_groups(length, window, groups, true);
          const RingSteps steps(length, window, groups * inner, true, inner);
          INFO(groups << " groups of " << inner << ", " << length << " tokens" << (window ? ", a window" : ""));
          CHECK(steps.ranks() == groups * inner);
          REQUIRE(steps.count() == of_groups.count());
          for (int64_t rank = 0; rank < groups * inner; ++rank) {
            const int64_t group = rank / inner;
            CHECK(steps.TokensOf(rank) == of_groups.TokensOf(group));
            for (int64_t step = 0; step <= steps.count(); ++step) {
              CHECK(steps.Source(rank, step) == of_groups.Source(group, step) * inner + rank % inner);
              CHECK(steps.Target(rank, step) == of_groups.Target(group, step) * inner + rank % inner);
              CHECK(steps.KeysOf(rank, step) == of_groups.KeysOf(group, step));
            }
            CHECK(RingForward(steps, rank, 8) == RingForward(of_groups, group, 8));
            CHECK(RingBackward(steps, rank, 8, 16) == RingBackward(of_groups, group, 8, 16));
          }
        }
      }
    }
  }
}

TEST_CASE("a window as long as an integer can be") {
  for (const bool zigzag : {false, true}) {
    CHECK(RingSteps(10, std::numeric_limits<int64_t>::max(), 4, zigzag).count() == 3);
  }
}

// 3, 3, 3 and 1 tokens.
TEST_CASE("the traffic of a ring of four ranks") {
  const RingSteps all(10, std::nullopt, 4, false);
  CHECK(RingForward(all, 0, 8) == CollectiveCount{3, 9 * 8});
  CHECK(RingForward(all, 2, 8) == CollectiveCount{3, 3 * 8});
  CHECK(RingForward(all, 3, 8) == CollectiveCount{3, 0});
  CHECK(RingBackward(all, 0, 8, 16) == CollectiveCount{6, 9 * 8});
  CHECK(RingBackward(all, 2, 8, 16) == CollectiveCount{6, 3 * 8 + 6 * 16});
  CHECK(RingBackward(all, 3, 8, 16) == CollectiveCount{6, 9 * 16});
  const RingSteps near(10, 3, 4, false);  // the last two keys of the block before and no other
  CHECK(RingForward(near, 2, 8) == CollectiveCount{1, 2 * 8});
  CHECK(RingBackward(near, 3, 8, 16) == CollectiveCount{2, 2 * 16});
  const RingSteps short_one(2, std::nullopt, 4, false);  // one token each on ranks 0 and 1
  CHECK(RingForward(short_one, 0, 8) == CollectiveCount{1, 8});
  CHECK(RingForward(short_one, 1, 8) == CollectiveCount{1, 0});
  CHECK(RingBackward(short_one, 3, 8, 16) == CollectiveCount{2, 0});
}

// Chunks of two tokens, four on each rank. An early chunk goes to the three other ranks, a late one to those before.
TEST_CASE("the traffic of a zigzag ring of four ranks is at most that of a ring that passes blocks on") {
  const RingSteps steps(16, std::nullopt, 4, true);
  int64_t sent = 0;
  for (int64_t rank = 0; rank < 4; ++rank) {
    const CollectiveCount forward = RingForward(steps, rank, 8);
    CHECK(forward == CollectiveCount{3, (3 + rank) * 2 * 8});
    CHECK(forward.bytes <= 3 * 4 * 8);
    // Gradients of the keys that it received: three early chunks, and the late ones of the ranks behind it.
    CHECK(RingBackward(steps, rank, 8, 16) == CollectiveCount{6, forward.bytes + (3 + 3 - rank) * 2 * 16});
    sent += forward.bytes;
  }
  CHECK(sent * 4 == 3 * 4 * 3 * 4 * 8);
}

// The chunks of tokens 0 and 1 and 14 and 15 are on rank 0: a token needs one key of the chunk before its own.
TEST_CASE("a short window needs a step for the early chunks and one for the late chunks of a zigzag ring") {
  const RingSteps steps(16, 2, 4, true);
  REQUIRE(steps.count() == 2);
  CHECK(steps.Source(1, 1) == 0);
  CHECK(steps.KeysOf(1, 1) == std::vector<Interval>{{1, 1}});
  CHECK(steps.Source(1, 2) == 2);
  CHECK(steps.KeysOf(1, 2) == std::vector<Interval>{{11, 1}});
  CHECK(RingForward(steps, 1, 8) == CollectiveCount{2, 2 * 8});
  CHECK(RingForward(RingSteps(16, 2, 4, false), 1, 8) == CollectiveCount{1, 8});
}

}  // namespace
}  // namespace moonshard
