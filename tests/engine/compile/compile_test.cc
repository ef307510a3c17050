#include "engine/compile/compile.h"

#include <catch2/catch.hpp>

#include "engine/compile/cost.h"
#include "engine/compile/local_shape.h"
#include "engine/compile/moves.h"
#include "tests/support/compiled_mlp.h"

namespace moonshard {
namespace {

using test::CompileMlp;
using test::Mesh;

TEST_CASE("local shapes are torch.chunk's") {
  const Placement rows = Layout::Shard(0);
  const std::vector<std::vector<int64_t>> expected = {{3, 4}, {3, 4}, {3, 4}, {1, 4}};
  for (int64_t rank = 0; rank < 4; ++rank) {
    CHECK(LocalShape({10, 4}, rows, Mesh("tp=4"), rank) == expected[static_cast<size_t>(rank)]);
  }
  // Five elements over four ranks: 2, 2, 1 and an empty piece.
  CHECK(LocalShape({5}, rows, Mesh("tp=4"), 3) == std::vector<int64_t>{0});
}

TEST_CASE("two axes cut one dim one after the other") {
  Placement both = Layout::Shard(0);
  both[MeshAxis::kDpShard] = Layout::Shard(0);
  std::vector<bool> seen(16);
  for (int64_t rank = 0; rank < 4; ++rank) {
    const std::vector<std::vector<Interval>> own = LocalIntervals({16}, both, Mesh("dp=2,tp=2"), rank);
    for (const Interval& interval : own.front()) {
      for (int64_t i = 0; i < interval.length; ++i) {
        CHECK_FALSE(seen[static_cast<size_t>(interval.begin + i)]);
        seen[static_cast<size_t>(interval.begin + i)] = true;
      }
    }
  }
  CHECK(std::ranges::all_of(seen, [](bool s) { return s; }));
}

TEST_CASE("siblings share a move, and totals count it once") {
  const CompiledPlan plan = CompileMlp("tp=2");
  CHECK(SharedUses(plan, 0) == std::vector<int>{0, 2, 2, 0});
  const PlanTotals totals = TotalsOf(plan, 0, Tokens{2, 3});
  CollectiveTotals expected;
  expected.AddForward(Collective::kAllReduce, 2 * 3 * 4 * 4);
  expected.AddBackward(Collective::kAllReduce, 2 * 3 * 4 * 4);
  CHECK(totals.collectives == expected);
  CHECK(totals.params == 120);
  CHECK(totals.sharded_params == 120);
  CHECK(totals.bytes_per_rank == 60 * 4);
  CHECK(TotalsOf(CompileMlp("tp=1"), 0).collectives == CollectiveTotals{});
}

TEST_CASE("gradients that need a sum, and over which ranks") {
  CHECK_FALSE(GradientGroupOf(Layout::Shard(0), Mesh("tp=4")));
  CHECK_FALSE(GradientGroupOf(Layout::Shard(0, 8), Mesh("tp=4")));
  CHECK_FALSE(GradientGroupOf(Layout::Shared(), Mesh("tp=1")));
  CHECK(GradientGroupOf(Layout::Shared(), Mesh("tp=4")) == GradientGroup{MeshAxis::kTp, 4});
  CHECK(GradientGroupOf(Layout::Shard(0, 2), Mesh("tp=8")) == GradientGroup{MeshAxis::kTp, 4});
}

TEST_CASE("the hash covers meaning, not place or local sizes") {
  const CompiledPlan plan = CompileMlp("tp=2");
  CHECK(plan.Hash().size() == 32);
  CHECK(plan.Hash() == CompileMlp("tp=2").Hash());
  CHECK(plan.Hash() == CompileMlp("tp=2", 12).Hash());
  CHECK(plan.Hash() != CompileMlp("tp=4").Hash());
}

TEST_CASE("every row of the algebra, and no other") {
  const std::vector<Layout> layouts = {Layout::Replicate(), Layout::Shared(), Layout::Shard(0), Layout::Shard(1),
                                       Layout::Partial()};
  int rows = 0;
  for (const Layout& from : layouts) {
    for (const Layout& to : layouts) rows += from != to && RowOf(from, to) ? 1 : 0;
  }
  // replicate: 1 + 2; each shard: 3; partial: 2 + 2; shared: none.
  CHECK(rows == 3 + 6 + 4);
  CHECK_FALSE(RowOf(Layout::Shard(0, 4), Layout::Shard(0, 2)));
}

}  // namespace
}  // namespace moonshard
