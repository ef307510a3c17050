// The table of shards: every index exactly as often as it is replicated, torch.chunk's cuts, heads and fused dims
// whole.
#include "engine/layout/shards.h"

#include <catch2/catch.hpp>
#include <numeric>

using namespace moonshard;

namespace {

using Intervals = std::vector<Interval>;

std::vector<int64_t> IndicesOf(const Intervals& intervals) {
  std::vector<int64_t> out;
  for (const Interval& interval : intervals) {
    for (int64_t i = interval.begin; i < interval.begin + interval.length; ++i) out.push_back(i);
  }
  return out;
}

// What torch.chunk gives to a rank: shards of ceil(size / ranks), as many as there are.
std::vector<int64_t> TorchChunk(int64_t size, int64_t ranks, int64_t rank) {
  const int64_t chunk = (size + ranks - 1) / ranks;
  std::vector<int64_t> out;
  for (int64_t i = 0; i < size; ++i) {
    if (chunk > 0 && i / chunk == rank) out.push_back(i);
  }
  return out;
}

// How often each index of the dim is held.
std::vector<int64_t> HeldBy(const DimShards& shards) {
  std::vector<int64_t> count(static_cast<size_t>(shards.size()), 0);
  for (int64_t rank = 0; rank < shards.ranks(); ++rank) {
    for (int64_t index : IndicesOf(shards.of(rank))) ++count.at(static_cast<size_t>(index));
  }
  return count;
}

// The same statements for PartsOf: local places without gaps, the same indices as of(), one first replica for each
// index.
void CheckParts(const DimShards& shards) {
  std::vector<int64_t> spoken(static_cast<size_t>(shards.size()), 0);
  for (int64_t rank = 0; rank < shards.ranks(); ++rank) {
    std::vector<int64_t> indices;
    for (const DimShards::LocalPart& part : shards.PartsOf(rank)) {
      REQUIRE(part.local_begin == static_cast<int64_t>(indices.size()));
      REQUIRE(shards.replicas() % part.replicas == 0);
      for (int64_t index : IndicesOf({part.global})) {
        indices.push_back(index);
        spoken.at(static_cast<size_t>(index)) += part.first_replica ? 1 : 0;
      }
    }
    REQUIRE(indices == IndicesOf(shards.of(rank)));
    REQUIRE(shards.length(rank) == static_cast<int64_t>(indices.size()));
    REQUIRE(shards.length(rank) <= shards.max_length());
    for (const Interval& interval : shards.of(rank)) REQUIRE(interval.length > 0);
  }
  REQUIRE(spoken == std::vector<int64_t>(static_cast<size_t>(shards.size()), 1));
}

std::string ShardErrorOf(const Layout& layout, int64_t size, int64_t ranks) {
  const Result<DimShards> result = DimShards::Make(layout, size, ranks);
  return result.ok() ? "" : ToText(result.diagnostics());
}

}  // namespace

TEST_CASE("an owner holds all of the dim") {
  const DimShards shards = DimShards::Make(Layout::Owned(0, 2), 6, 4).ValueOrThrow();
  for (int64_t rank = 0; rank < 4; ++rank) CHECK(shards.of(rank) == (rank == 2 ? Intervals{{0, 6}} : Intervals{}));
  CHECK_FALSE(shards.is_plain());
  CHECK(shards.max_length() == 6);
  CheckParts(shards);
  const Result<DimShards> none = DimShards::Make(Layout::Owned(0, 4), 6, 4);
  REQUIRE_FALSE(none.ok());
  CHECK(none.diagnostics()[0].finding == Finding::kNoSuchOwner);
  CHECK(none.diagnostics()[0].required == "an owner from 0 to 3");
  CHECK(Layout::Owned(0, 2) != Layout::Shard(0));
  CHECK(Layout::Owned(0, 2).ToText() == "shard(0,owner=2)");
  CHECK(Layout::Owned(0, 2).ToString() == "shard(0)");
}

TEST_CASE("a plain shard is torch.chunk") {
  for (int64_t size = 0; size <= 40; ++size) {
    for (int64_t ranks = 1; ranks <= 12; ++ranks) {
      const DimShards shards = DimShards::Make(Layout::Shard(0), size, ranks).ValueOrThrow();
      CAPTURE(size, ranks);
      for (int64_t rank = 0; rank < ranks; ++rank) {
        REQUIRE(IndicesOf(shards.of(rank)) == TorchChunk(size, ranks, rank));
        REQUIRE(shards.of(rank).size() <= 1);
      }
      REQUIRE(shards.is_plain());
      REQUIRE(shards.replicas() == 1);
      CheckParts(shards);
    }
  }
}

// On cp=2x2 the two ranks of a group share the chunks 0 and 3, or 1 and 2, of four.
TEST_CASE("on two factors a group has a zigzag shard, and its ranks consecutive parts of it") {
  const auto of = [](int64_t size, int64_t ranks, int64_t inner, int64_t rank) {
    return DimShards::Make(Layout::Zigzag(1, inner), size, ranks).ValueOrThrow().of(rank);
  };
  // Chunks of 2: [0 1] [2 3] [4 5] [6 7].
  CHECK(of(8, 4, 2, 0) == Intervals{{0, 2}});
  CHECK(of(8, 4, 2, 1) == Intervals{{6, 2}});
  CHECK(of(8, 4, 2, 2) == Intervals{{2, 2}});
  CHECK(of(8, 4, 2, 3) == Intervals{{4, 2}});
  // Chunks of 4, 4, 4 and 1: the first group has 5 tokens, of which its first rank has 3.
  CHECK(of(13, 4, 2, 0) == Intervals{{0, 3}});
  CHECK(of(13, 4, 2, 1) == Intervals{{3, 1}, {12, 1}});
  CHECK(of(13, 4, 2, 2) == Intervals{{4, 4}});
  CHECK(of(13, 4, 2, 3) == Intervals{{8, 4}});
  // Three tokens on four ranks: chunks of 1, 1, 1 and 0.
  CHECK(of(3, 4, 2, 0) == Intervals{{0, 1}});
  CHECK(of(3, 4, 2, 1).empty());
  CHECK(of(3, 4, 2, 2) == Intervals{{1, 1}});
  CHECK(of(3, 4, 2, 3) == Intervals{{2, 1}});
  // Three ranks to a group: chunks of 3 and 6 tokens for each group, 2 for each rank.
  CHECK(of(12, 6, 3, 1) == Intervals{{2, 1}, {9, 1}});
  CHECK(of(12, 6, 3, 4) == Intervals{{5, 2}});
  for (const int64_t inner : {2, 3, 4}) {
    for (const int64_t groups : {2, 3, 4}) {
      for (int64_t size = 0; size <= 40; ++size) {
        INFO(size << " elements on " << groups << " groups of " << inner);
        const int64_t ranks = groups * inner;
        const DimShards shards = DimShards::Make(Layout::Zigzag(0, inner), size, ranks).ValueOrThrow();
        const DimShards outer = DimShards::Make(Layout::Zigzag(0), size, groups).ValueOrThrow();
        CHECK(shards.ranks() == ranks);
        CHECK(shards.replicas() == 1);
        CHECK_FALSE(shards.is_plain());
        for (int64_t group = 0; group < groups; ++group) {
          const std::vector<int64_t> all = IndicesOf(outer.of(group));
          const DimShards chunks =
              DimShards::Make(Layout::Shard(0), static_cast<int64_t>(all.size()), inner).ValueOrThrow();
          for (int64_t i = 0; i < inner; ++i) {
            std::vector<int64_t> wanted;
            for (const int64_t at : IndicesOf(chunks.of(i))) wanted.push_back(all[static_cast<size_t>(at)]);
            CHECK(IndicesOf(shards.of(group * inner + i)) == wanted);
          }
        }
        CHECK(HeldBy(shards) == std::vector<int64_t>(static_cast<size_t>(size), 1));
        CheckParts(shards);
      }
    }
  }
}

TEST_CASE("on two factors heads are sharded over the inner one") {
  Layout layout = Layout::Shard(-1, 4);
  layout.inner = 2;
  const DimShards shards = DimShards::Make(layout, 8, 6).ValueOrThrow();
  for (int64_t rank = 0; rank < 6; ++rank) CHECK(shards.of(rank) == std::vector<Interval>{{rank % 2 * 4, 4}});
  layout.heads = 0;
  CHECK_FALSE(DimShards::Make(layout, 8, 6).ValueOrThrow().is_plain());
  CHECK_FALSE(layout.is_plain_shard());
  layout.heads = 1;  // on both ranks of a group
  CHECK(DimShards::Make(layout, 8, 6).ValueOrThrow().replicas() == 2);
  layout.heads = 3;
  CHECK(DimShards::Make(layout, 9, 6).diagnostics().front().message == "3 heads do not fit on 2 ranks");
}

TEST_CASE("a zigzag shard is an early and a late chunk") {
  const DimShards shards = DimShards::Make(Layout::Zigzag(1), 16, 4).ValueOrThrow();
  CHECK(shards.of(0) == Intervals{{0, 2}, {14, 2}});
  CHECK(shards.of(2) == Intervals{{4, 2}, {10, 2}});
  CHECK(shards.of(3) == Intervals{{6, 4}});  // neighbours
  CHECK_FALSE(shards.is_plain());
  CHECK(DimShards::Make(Layout::Zigzag(1), 16, 1).ValueOrThrow().is_plain());
  CHECK_FALSE(Layout::Zigzag(1).is_plain_shard());
  for (int64_t size = 0; size <= 40; ++size) {
    for (int64_t ranks = 1; ranks <= 12; ++ranks) {
      const DimShards all = DimShards::Make(Layout::Zigzag(0), size, ranks).ValueOrThrow();
      CAPTURE(size, ranks);
      for (int64_t rank = 0; rank < ranks; ++rank) {
        std::vector<int64_t> want = TorchChunk(size, 2 * ranks, rank);
        const std::vector<int64_t> late = TorchChunk(size, 2 * ranks, 2 * ranks - 1 - rank);
        want.insert(want.end(), late.begin(), late.end());
        REQUIRE(IndicesOf(all.of(rank)) == want);
      }
      REQUIRE(HeldBy(all) == std::vector<int64_t>(static_cast<size_t>(size), 1));
      CheckParts(all);
    }
  }
}

TEST_CASE("heads are never cut, and fewer than ranks are replicated") {
  for (int64_t heads = 1; heads <= 12; ++heads) {
    for (int64_t ranks = 1; ranks <= 12; ++ranks) {
      const int64_t head_size = 3;
      const Result<DimShards> result = DimShards::Make(Layout::Shard(0, heads), heads * head_size, ranks);
      CAPTURE(heads, ranks);
      if (heads % ranks != 0 && ranks % heads != 0) {
        REQUIRE_FALSE(result.ok());
        continue;
      }
      const DimShards& shards = result.value();
      const int64_t replicas = ranks > heads ? ranks / heads : 1;
      REQUIRE(shards.replicas() == replicas);
      REQUIRE(shards.is_plain() == (replicas == 1));
      REQUIRE(HeldBy(shards) == std::vector<int64_t>(static_cast<size_t>(heads * head_size), replicas));
      for (int64_t rank = 0; rank < ranks; ++rank) {
        REQUIRE(shards.of(rank).size() == 1);
        const int64_t first_head = rank * heads / ranks;
        REQUIRE(shards.of(rank)[0].begin == first_head * head_size);
        REQUIRE(shards.length(rank) % head_size == 0);
      }
      CheckParts(shards);
    }
  }
}

TEST_CASE("a fused dim is cut part by part") {
  // A fused query, key and value: 8, 2 and 2 heads of 4.
  const Layout qkv = Layout::Packed(0, {{32, 8}, {8, 2}, {8, 2}});
  const DimShards two = DimShards::Make(qkv, 48, 2).ValueOrThrow();
  CHECK(two.of(0) == Intervals{{0, 16}, {32, 4}, {40, 4}});
  CHECK(two.of(1) == Intervals{{16, 16}, {36, 4}, {44, 4}});
  CHECK(two.replicas() == 1);
  CHECK_FALSE(two.is_plain());
  const DimShards four = DimShards::Make(qkv, 48, 4).ValueOrThrow();
  CHECK(four.of(0) == Intervals{{0, 8}, {32, 4}, {40, 4}});
  CHECK(four.of(1) == Intervals{{8, 8}, {32, 4}, {40, 4}});
  CHECK(four.of(3) == Intervals{{24, 8}, {36, 4}, {44, 4}});
  CHECK(four.replicas() == 2);
  const std::vector<DimShards::LocalPart> parts = four.PartsOf(3);
  REQUIRE(parts.size() == 3);
  CHECK(parts[0].replicas == 1);
  CHECK(parts[1].replicas == 2);
  CHECK_FALSE(parts[1].first_replica);
  CHECK(parts[2].local_begin == 12);
  // Neighbours are joined: on one rank the shard is the dim.
  CHECK(DimShards::Make(qkv, 48, 1).ValueOrThrow().of(0) == Intervals{{0, 48}});
  for (int64_t a = 0; a <= 9; ++a) {
    for (int64_t b = 0; b <= 9; ++b) {
      for (int64_t ranks = 1; ranks <= 6; ++ranks) {
        const DimShards shards = DimShards::Make(Layout::Packed(0, {{a}, {b}, {a}}), 2 * a + b, ranks).ValueOrThrow();
        CAPTURE(a, b, ranks);
        REQUIRE(HeldBy(shards) == std::vector<int64_t>(static_cast<size_t>(2 * a + b), 1));
        for (int64_t rank = 0; rank < ranks; ++rank) {
          const int64_t length =
              static_cast<int64_t>(2 * TorchChunk(a, ranks, rank).size() + TorchChunk(b, ranks, rank).size());
          REQUIRE(shards.length(rank) == length);
        }
        CheckParts(shards);
      }
    }
  }
}

TEST_CASE("what does not fit is refused with what would") {
  CHECK_THAT(ShardErrorOf(Layout::Shard(0, 6), 48, 4), Catch::Contains("MS0304") &&
                                                           Catch::Contains("6 heads do not fit on 4 ranks") &&
                                                           Catch::Contains("legal sizes: 1, 2, 3, 6, 12"));
  CHECK_THAT(ShardErrorOf(Layout::Shard(0, 5), 48, 5),
             Catch::Contains("a dim of 48 elements is not divisible into 5 heads"));
  CHECK_THAT(ShardErrorOf(Layout::Shard(0, -4), 48, 4), Catch::Contains("is not divisible into -4 heads"));
  CHECK_THAT(ShardErrorOf(Layout::Packed(0, {{32}, {8}}), 48, 2),
             Catch::Contains("MS0305") &&
                 Catch::Contains("the packed sizes add up to 40, but the dim has 48 elements") &&
                 Catch::Contains("packed(0,[32,8])"));
  CHECK_THAT(ShardErrorOf(Layout::Packed(0, {{-8}, {56}}), 48, 2), Catch::Contains("cannot have -8 elements"));
  CHECK_THAT(ShardErrorOf(Layout::Packed(0, {{INT64_MAX}, {INT64_MAX}, {50}}), 48, 2), Catch::Contains("MS0305"));
  CHECK_THAT(ShardErrorOf(Layout::Packed(0, {{32, 8}, {16, 3}}), 48, 2),
             Catch::Contains("16 elements is not divisible into 3 heads"));
  // More heads than an axis can have ranks: no list is made of them.
  constexpr int64_t kMany = int64_t{1} << 62;
  CHECK_THAT(ShardErrorOf(Layout::Shard(0, kMany), kMany, 3), Catch::Contains("legal sizes: 1, 2, 4,"));
  CHECK_THROWS_AS((void)DimShards::Make(Layout::Replicate(), 48, 2), InternalError);
  CHECK(LegalAxisSizes(4, 16) == std::vector<int64_t>{1, 2, 4, 8, 12, 16});
}
