// Maps of indices against the elements themselves: a tensor of which each element is its own place in the full one is
// viewed, sliced and joined, and the map must say what lies there.
#include <catch2/catch.hpp>

#include <ATen/ATen.h>

#include "engine/analysis/types/index_map.h"

namespace moonshard::test {
namespace {

IndexMapPtr MapOf(const Layout& layout, int64_t size, int64_t ranks) {
  return IndexMap::Of(DimShards::Make(layout.Sized(size), size, ranks).ValueOrThrow());
}

// The full indices that a rank holds, as a list.
std::vector<int64_t> Indices(const IndexMap& map, int64_t rank) {
  std::vector<int64_t> out;
  for (const Interval& one : map.of(rank)) {
    for (int64_t i = 0; i < one.length; ++i) out.push_back(one.begin + i);
  }
  return out;
}

at::Tensor Shard(const at::Tensor& full, const IndexMap& map, int64_t rank, int64_t dim) {
  return full.index_select(dim, at::tensor(Indices(map, rank), at::kLong));
}

std::vector<IndexMapPtr> SomeMaps() {
  return {MapOf(Layout::Shard(0), 24, 2),
          MapOf(Layout::Shard(0), 24, 4),
          MapOf(Layout::Shard(0, 2), 24, 4),
          MapOf(Layout::Shard(0, 1), 24, 2),
          MapOf(Layout::PackedEqually(0, 2), 24, 2),
          MapOf(Layout::PackedEqually(0, 3), 24, 2),
          MapOf(Layout::Packed(0, {{12, 4}, {6, 2}, {6, 2}}), 24, 2),
          MapOf(Layout::Packed(0, {{16, 4}, {4, 1}, {4, 1}}), 24, 4)};
}

TEST_CASE("a flattened dim holds what its elements say, and opens to what it was") {
  for (const IndexMapPtr& map : SomeMaps()) {
    for (const auto& [front, behind] : {std::pair{1, 1}, {3, 1}, {1, 2}, {2, 5}}) {
      const at::Tensor full = at::arange(front * map->size() * behind).view({front, map->size(), behind});
      const IndexMapPtr flat = map->Flattened(front, behind);
      REQUIRE(flat != nullptr);
      CHECK(flat->size() == full.numel());
      for (int64_t rank = 0; rank < map->ranks(); ++rank) {
        INFO(map->ToString() << ", " << front << " in front, " << behind << " behind, rank " << rank);
        const at::Tensor local = Shard(full, *map, rank, 1).reshape({-1});
        CHECK(at::equal(local, at::tensor(Indices(*flat, rank), at::kLong)));
      }
      const IndexMapPtr back = flat->Opened(front, behind);
      REQUIRE(back != nullptr);
      CHECK(*back == *map);
    }
  }
}

// All that a dim opens into is right where it is given, and where it is not given there is no such map: tried by all
// maps of one interval a rank.
TEST_CASE("a dim opens only where every rank's elements are such a block") {
  for (const IndexMapPtr& map : SomeMaps()) {
    for (int64_t front : {1, 2, 3, 4}) {
      for (int64_t behind : {1, 2, 3, 4, 6}) {
        const IndexMapPtr opened = map->Opened(front, behind);
        if (24 % (front * behind) != 0) {
          CHECK(opened == nullptr);
          continue;
        }
        INFO(map->ToString() << " as [" << front << ", x, " << behind << "]");
        const at::Tensor full = at::arange(24).view({front, 24 / (front * behind), behind});
        bool fits = true;
        for (int64_t rank = 0; rank < map->ranks(); ++rank) {
          const at::Tensor local = at::tensor(Indices(*map, rank), at::kLong);
          if (local.numel() % (front * behind) != 0) {
            fits = false;
            continue;
          }
          const at::Tensor block = local.view({front, -1, behind});
          const at::Tensor rows = at::div(block.select(0, 0).select(1, 0), behind, "floor");
          const bool is_block =
              rows.max().item<int64_t>() < full.size(1) && at::equal(block, full.index_select(1, rows));
          fits = fits && is_block;
          if (opened != nullptr) CHECK(at::equal(rows, at::tensor(Indices(*opened, rank), at::kLong)));
        }
        CHECK((opened != nullptr) == fits);
      }
    }
  }
}

TEST_CASE("what is taken is one part of the dim, or has no map") {
  const IndexMapPtr fused = MapOf(Layout::Packed(0, {{12, 4}, {6, 2}, {6, 2}}), 24, 2);
  CHECK(*fused->Taken(0, 6) == *MapOf(Layout::Shard(0), 12, 2));
  CHECK(*fused->Taken(6, 3) == *MapOf(Layout::Shard(0), 6, 2));
  CHECK(*fused->Taken(6, 6) == *MapOf(Layout::PackedEqually(0, 2), 12, 2));
  CHECK(fused->Taken(0, 4) == nullptr);
  CHECK(fused->Taken(3, 6) == nullptr);
  CHECK(MapOf(Layout::Shard(0), 24, 2)->Taken(0, 6) == nullptr);
  CHECK(MapOf(Layout::Shard(0), 23, 2)->Taken(0, 6) == nullptr);
}

TEST_CASE("parts that are joined are a fused dim") {
  const IndexMapPtr joined =
      IndexMap::Joined({MapOf(Layout::Shard(0), 12, 2), MapOf(Layout::Shard(0), 6, 2), MapOf(Layout::Shard(0), 6, 2)});
  CHECK(*joined == *MapOf(Layout::Packed(0, {{12, 0}, {6, 0}, {6, 0}}), 24, 2));
  CHECK(IndexMap::Joined({MapOf(Layout::Shard(0), 12, 2), nullptr}) == nullptr);
}

TEST_CASE("key heads correspond to the queries of their group") {
  const IndexMapPtr queries = MapOf(Layout::Shard(0, 8), 8, 4);
  CHECK(Corresponds(*queries, *queries));
  CHECK(Corresponds(*queries, *MapOf(Layout::Shard(0, 4), 4, 4)->Repeated(2)));
  CHECK(Corresponds(*MapOf(Layout::Shard(0, 2), 2, 4)->Repeated(2), *queries));
  CHECK_FALSE(Corresponds(*queries, *MapOf(Layout::Shard(0, 4), 4, 4)));
  CHECK_FALSE(Corresponds(*queries, *MapOf(Layout::Shard(0, 2), 4, 4)));
  CHECK_FALSE(Corresponds(*MapOf(Layout::Shard(0), 24, 2), *MapOf(Layout::PackedEqually(0, 2), 24, 2)));
  CHECK_FALSE(Corresponds(*MapOf(Layout::Shard(0), 24, 2), *MapOf(Layout::Shard(0), 23, 2)));
}

TEST_CASE("a map in words") {
  CHECK(MapOf(Layout::PackedEqually(0, 2), 8, 2)->ToString() ==
        "rank 0 holds 0..1, 4..5, rank 1 holds 2..3, 6..7, of 8 indices");
  CHECK(MapOf(Layout::Shard(0), 4, 4)->ToString() == "rank 0 holds 0, rank 1 holds 1, ..., of 4 indices");
}

}  // namespace
}  // namespace moonshard::test
