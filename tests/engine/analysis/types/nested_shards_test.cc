// The type along one axis of a dim that another axis begins or ends to shard, against the indices that the ranks hold
// by the two layouts.
#include "engine/analysis/types/nested_shards.h"

#include <catch2/catch.hpp>
#include <vector>

#include "engine/layout/shards.h"

namespace moonshard {
namespace {

using Sizes = std::vector<int64_t>;

AxisType OnTp(const Layout& layout, const Sizes& local, int64_t full, int64_t rank) {
  return TypeOfLayout(layout, local, full, 2, rank);
}

TEST_CASE("features that tp shards, and then cp") {
  // 8 heads of 4 features on 2 ranks of tp; each rank's 4 heads go to 2 ranks of cp, which hold a half of 6 tokens.
  const AxisType before = OnTp(Layout::Shard(-1, 8), {1, 3, 16}, 32, 1);
  const MovedAlong moved = {MeshAxis::kCp, 2, 1, Layout::Shard(1), Layout::Shard(-1, 4)};
  const auto after = TypeBeside(before, MeshAxis::kTp, 1, moved, Sizes{1, 3, 16}, Sizes{1, 6, 8});
  REQUIRE(after);
  CHECK(after->dim == 2);
  CHECK(after->length == 8);
  CHECK(after->heads == 4);
  CHECK(after->head == 4);
  CHECK_FALSE(after->uneven);
  REQUIRE(after->map != nullptr);
  CHECK(after->map->size() == 16);
  CHECK(after->map->in_order());
  const MovedAlong back = {MeshAxis::kCp, 2, 1, Layout::Shard(-1, 4), Layout::Shard(1)};
  const auto again = TypeBeside(*after, MeshAxis::kTp, 1, back, Sizes{1, 6, 8}, Sizes{1, 3, 16});
  REQUIRE(again);
  CHECK(*again->map == *before.map);
  CHECK(again->length == 16);
  CHECK(again->heads == 8);
}

TEST_CASE("parts of fused features stay apart") {
  const Layout packed = Layout::Packed(-1, {{16, 0}, {8, 0}});
  const AxisType before = OnTp(packed, {1, 3, 12}, 24, 0);
  REQUIRE(before.parts == Sizes{8, 4});
  const MovedAlong moved = {MeshAxis::kCp, 2, 0, Layout::Shard(1), Layout::Packed(-1, {{8, 0}, {4, 0}})};
  const auto after = TypeBeside(before, MeshAxis::kTp, 0, moved, Sizes{1, 3, 12}, Sizes{1, 6, 6});
  REQUIRE(after);
  CHECK(after->parts == Sizes{4, 2});
  REQUIRE(after->map != nullptr);
  // Of parts [8, 4], which this rank of cp has of both ranks of tp.
  CHECK((after->map->of(0) == std::vector<Interval>{{0, 4}, {8, 2}}));
  CHECK((after->map->of(1) == std::vector<Interval>{{4, 4}, {10, 2}}));
  const MovedAlong other = {MeshAxis::kCp, 2, 0, Layout::Shard(1), Layout::Shard(-1)};
  CHECK_FALSE(TypeBeside(before, MeshAxis::kTp, 0, other, Sizes{1, 3, 12}, Sizes{1, 6, 6}));
}

TEST_CASE("a sequence that cp shards, and then tp") {
  const AxisType before = TypeOfLayout(Layout::Shard(1), Sizes{1, 4, 8}, -1, 2, 0);
  const MovedAlong scattered = {MeshAxis::kTp, 2, 1, Layout::Partial(), Layout::Shard(1)};
  const auto after = TypeBeside(before, MeshAxis::kCp, 0, scattered, Sizes{1, 4, 8}, Sizes{1, 2, 8});
  REQUIRE(after);
  CHECK(after->length == 2);
  CHECK(after->map->size() == 4);
  const MovedAlong gathered = {MeshAxis::kTp, 2, 1, Layout::Shard(1), Layout::Shared()};
  const auto again = TypeBeside(*after, MeshAxis::kCp, 0, gathered, Sizes{1, 2, 8}, Sizes{1, 4, 8});
  REQUIRE(again);
  CHECK(*again->map == *before.map);
}

// 8 tokens, of which rank 0 of cp has 0, 1, 6 and 7: the first rank of tp has the first half of it.
TEST_CASE("a sequence that cp shards in zigzag, and then tp") {
  for (const int64_t tp : {0, 1}) {
    for (const int64_t cp : {0, 1}) {
      const AxisType before = TypeOfLayout(Layout::Zigzag(1), Sizes{1, 4, 8}, 8, 2, cp);
      const MovedAlong scattered = {MeshAxis::kTp, 2, tp, Layout::Partial(), Layout::Shard(1)};
      const auto after = TypeBeside(before, MeshAxis::kCp, cp, scattered, Sizes{1, 4, 8}, Sizes{1, 2, 8}, true);
      REQUIRE(after);
      CHECK((after->map->of(0) == std::vector<Interval>{{tp == 0 ? 0 : 2, 2}}));
      CHECK((after->map->of(1) == std::vector<Interval>{{tp == 0 ? 2 : 0, 2}}));
      const MovedAlong gathered = {MeshAxis::kTp, 2, tp, Layout::Shard(1), Layout::Shared()};
      const auto again = TypeBeside(*after, MeshAxis::kCp, cp, gathered, Sizes{1, 2, 8}, Sizes{1, 4, 8}, true);
      REQUIRE(again);
      CHECK(*again->map == *before.map);
      // As plain shards, the second rank of tp has another order of the ranks.
      const auto plain = TypeBeside(*after, MeshAxis::kCp, cp, gathered, Sizes{1, 2, 8}, Sizes{1, 4, 8}, false);
      CHECK(plain.has_value() == (tp == 0));
    }
  }
}

// 11 tokens, of which the ranks of cp have 6 and 5: those of tp have 3 and 3 of the first, and 3 and 2 of the second,
// which the first rank does not know.
TEST_CASE("a sequence of other lengths that cp shards, and then tp, is not known") {
  const AxisType before = TypeOfLayout(Layout::Shard(1), Sizes{1, 6, 8}, 11, 2, 0);
  REQUIRE(before.uneven);
  const MovedAlong scattered = {MeshAxis::kTp, 2, 0, Layout::Partial(), Layout::Shard(1)};
  CHECK_FALSE(TypeBeside(before, MeshAxis::kCp, 0, scattered, Sizes{1, 6, 8}, Sizes{1, 3, 8}));
  const AxisType odd = TypeOfLayout(Layout::Shard(1), Sizes{1, 5, 8}, 10, 2, 0);
  CHECK_FALSE(TypeBeside(odd, MeshAxis::kCp, 0, scattered, Sizes{1, 5, 8}, Sizes{1, 3, 8}));
  // A gradient's, which has no map.
  AxisType gradient = odd;
  gradient.map = nullptr;
  gradient.of_gradient = true;
  CHECK_FALSE(TypeBeside(gradient, MeshAxis::kCp, 0, scattered, Sizes{1, 5, 8}, Sizes{1, 3, 8}));
}

TEST_CASE("zigzag shards of one length have an even number of elements") {
  const AxisType even = TypeOfLayout(Layout::Zigzag(1), Sizes{1, 4, 8}, -1, 2, 0);
  CHECK_FALSE(even.uneven);
  REQUIRE(even.map != nullptr);
  CHECK((even.map->of(0) == std::vector<Interval>{{0, 2}, {6, 2}}));
  const AxisType odd = TypeOfLayout(Layout::Zigzag(1), Sizes{1, 5, 8}, -1, 2, 0);
  CHECK(odd.uneven);
  CHECK(odd.map == nullptr);
  CHECK_FALSE(TypeOfLayout(Layout::Zigzag(1), Sizes{1, 5, 8}, -1, 1, 0).uneven);
}

TEST_CASE("what is not known is not guessed") {
  const AxisType type = OnTp(Layout::Shard(-1), {1, 6, 8}, 32, 0);  // of 32 features on 2 ranks, 8 are not a shard
  const AxisType half = OnTp(Layout::Shard(-1), {1, 6, 16}, 32, 0);
  const auto beside = [](const AxisType& of, MeshAxis axis, const MovedAlong& moved, const Sizes& a, const Sizes& b) {
    return TypeBeside(of, axis, 0, moved, a, b).has_value();
  };
  const MovedAlong enters = {MeshAxis::kCp, 2, 0, Layout::Shard(1), Layout::Shard(-1)};
  CHECK(beside(half, MeshAxis::kTp, enters, {1, 3, 16}, {1, 6, 8}));
  CHECK(beside(type, MeshAxis::kTp, enters, {1, 3, 8}, {1, 6, 4}));  // without a map: of a gradient
  // tp gathers what cp sharded after it: the rows of the ranks of tp would lie between each other.
  const AxisType on_cp = TypeOfLayout(Layout::Shard(-1), Sizes{1, 6, 8}, -1, 2, 0);
  const MovedAlong outer = {MeshAxis::kTp, 2, 0, Layout::Shard(-1), Layout::Replicate()};
  CHECK_FALSE(beside(on_cp, MeshAxis::kCp, outer, {1, 6, 8}, {1, 6, 16}));
  // The other order of the sequence.
  const AxisType tokens = TypeOfLayout(Layout::Shard(1), Sizes{1, 2, 8}, -1, 2, 0);
  CHECK_FALSE(
      beside(tokens, MeshAxis::kTp, {MeshAxis::kCp, 2, 0, Layout::Shard(1), Layout::Shared()}, {1, 2, 8}, {1, 4, 8}));
  // Tokens and features in one dim, and shards of other lengths.
  CHECK_FALSE(beside(half, MeshAxis::kTp, enters, {3, 3, 16, 1}, {3, 3, 8, 1}));
  CHECK_FALSE(
      beside(tokens, MeshAxis::kCp, {MeshAxis::kTp, 2, 0, Layout::Shard(1), Layout::Shared()}, {1, 2, 8}, {1, 3, 8}));
  // Neither of the two layouts shards the dim.
  CHECK_FALSE(
      beside(half, MeshAxis::kTp, {MeshAxis::kCp, 2, 0, Layout::Shard(1), Layout::Replicate()}, {1, 3, 16}, {1, 6, 8}));
}

TEST_CASE("what the redistribution does not change stays") {
  const AxisType half = OnTp(Layout::Shard(-1), {1, 6, 16}, 32, 0);
  const MovedAlong moved = {MeshAxis::kCp, 2, 0, Layout::Shard(1), Layout::Replicate()};
  const auto after = TypeBeside(half, MeshAxis::kTp, 0, moved, Sizes{1, 6, 16}, Sizes{1, 12, 16});
  REQUIRE(after);
  CHECK(*after->map == *half.map);
  CHECK(TypeBeside(AxisType::Partial(), MeshAxis::kTp, 0, moved, Sizes{1, 6, 16}, Sizes{1, 12, 16})->is_partial());
}

}  // namespace
}  // namespace moonshard
