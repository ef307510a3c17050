#include "engine/plan/compile/compile.h"

#include <catch2/catch.hpp>

#include "engine/layout/redistributions.h"
#include "engine/plan/compile/checks.h"
#include "engine/plan/compile/cost.h"
#include "engine/plan/compile/gradient_sums.h"
#include "engine/plan/compile/local_shape.h"
#include "tests/support/compiled_mlp.h"

namespace moonshard {
namespace {

using test::CompileMlp;
using test::MakeRule;
using test::Mesh;

TEST_CASE("local shapes are torch.chunk's") {
  const Placement rows = Layout::Shard(0);
  const std::vector<std::vector<int64_t>> expected = {{3, 4}, {3, 4}, {3, 4}, {1, 4}};
  for (int64_t rank = 0; rank < 4; ++rank) {
    CHECK(LocalShape({10, 4}, rows, Mesh("tp=4"), rank) == expected[static_cast<size_t>(rank)]);
  }
  // Five elements over four ranks: 2, 2, 1 and an empty shard.
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
  std::vector<int> uses;
  std::vector<std::string> with;
  for (size_t m = 0; m < 4; ++m) {
    for (const ModuleStep& step : plan.StepsOf(m).enter) {
      if (step.kind != StepKind::kRedistributeInput) continue;
      uses.push_back(step.uses);
      with.push_back(step.shared_with);
    }
  }
  CHECK(uses == std::vector<int>{2, 2});
  CHECK(with == std::vector<std::string>{"", "gate"});
  const PlanTotals totals = TotalsOf(plan, 0, Tokens{2, 3});
  CollectiveCounts expected;
  expected.Add(Direction::kForward, CollectiveKind::kAllReduce, 2 * 3 * 4 * 4);
  expected.Add(Direction::kBackward, CollectiveKind::kAllReduce, 2 * 3 * 4 * 4);
  CHECK(totals.collectives == expected);
  CHECK(totals.params == 120);
  CHECK(totals.sharded_params == 120);
  CHECK(totals.bytes_per_rank == 60 * 4);
  CHECK(TotalsOf(CompileMlp("tp=1"), 0).collectives == CollectiveCounts{});
}

TEST_CASE("gradients that need a sum, and over which ranks") {
  using Terms = std::vector<GradientTerm>;
  const auto terms = [](const Layout& layout, const char* mesh, int64_t rank = 0) {
    return GradientTermsOf({16, 4}, layout, Mesh(mesh), rank);
  };
  CHECK(terms(Layout::Shard(0), "tp=4").empty());
  CHECK(terms(Layout::Shard(0, 8), "tp=4").empty());
  CHECK(terms(Layout::Shared(), "tp=1").empty());
  CHECK(terms(Layout::Shared(), "tp=4") == Terms{{{MeshAxis::kTp, 4}}});
  CHECK(terms(Layout::Shard(0, 2), "tp=8") == Terms{{{MeshAxis::kTp, 4}}});
  // Fused q, k, v of 4, 2 and 2 heads of 2: k and v lie side by side behind q and are summed as one; a part of its own
  // that is cut unevenly moves them by rank.
  const Layout qkv = Layout::Packed(0, {{8, 4}, {4, 2}, {4, 2}});
  CHECK(terms(qkv, "tp=2").empty());
  CHECK(terms(qkv, "tp=4", 3) == Terms{{{MeshAxis::kTp, 2}, 0, 2, 4}});
  const Layout uneven = Layout::Packed(0, {{3, 0}, {9, 0}, {4, 2}});
  CHECK(terms(uneven, "tp=4", 0) == Terms{{{MeshAxis::kTp, 2}, 0, 4, 2}});
  CHECK(terms(uneven, "tp=4", 3) == Terms{{{MeshAxis::kTp, 2}, 0, 0, 2}});
}

TEST_CASE("the hash covers meaning, not place or local sizes") {
  const CompiledPlan plan = CompileMlp("tp=2");
  CHECK(plan.Hash().size() == 32);
  CHECK(plan.Hash() == CompileMlp("tp=2").Hash());
  CHECK(plan.Hash() == CompileMlp("tp=2", 12).Hash());
  CHECK(plan.Hash() != CompileMlp("tp=4").Hash());
}

TEST_CASE("a plan that shards less than half is a finding, one that shards half is none") {
  const auto finding = [](const std::string& rows, const std::string& mesh) {
    const auto tree = std::make_shared<const ModuleTree>(
        TreeFromText("cut Linear weight:float32[10, 4]\nwhole Linear weight:float32[" + rows +
                     ", 4]\ncut2 Linear weight:float32[10, 4]\ntied: cut.weight cut2.weight\n"));
    auto plan = std::make_shared<Plan>();
    for (const std::string name : {"cut", "cut2"}) {
      Rule rule;
      rule.pattern = name;
      rule.style.params["weight"] = Placement(Layout::Shard(0));
      plan->rules.push_back(rule);
    }
    const CompiledPlan compiled = CompilePlan(MatchRules(plan, tree).ValueOrThrow(), Mesh(mesh)).ValueOrThrow();
    const std::optional<Diagnostic> found = FindMostlyReplicated(compiled);
    return found ? ToText(Diagnostics{*found}) : "";
  };
  CHECK(finding("10", "tp=2").empty());
  CHECK(finding("12", "tp=1").empty());
  CHECK(finding("11", "tp=2") ==
        "warning[MS0208]: the plan shards 47% of the model; the rest is replicated on every rank\n"
        "    declared: replicated: whole.weight (52%)\n"
        "    help: if that is not intended, use a plan for this model's modules: --plan FILE\n");
}

TEST_CASE("a masked lookup needs rows of its own on every rank") {
  const auto tree = std::make_shared<const ModuleTree>(TreeFromText("embed Embedding weight:float32[8, 4]\n"));
  const auto found = [&](const Layout& layout) {
    auto plan = std::make_shared<Plan>();
    plan->name = "lookup";
    plan->rules.push_back(MakeRule("embed", "vocab_rowwise", Layout::Shard(0), {Placement(), Placement()},
                                   {Placement(Layout::Partial()), Placement()}, 1));
    plan->rules.back().style.lookup = Lookup::kMasked;
    Rule own;
    own.pattern = "embed.weight";
    own.parameter = Placement(layout);
    own.source = {"p.lua", 2, 0, 0, ""};
    plan->rules.push_back(std::move(own));
    return ToText(ResolvePlan(plan, tree, Mesh("tp=4")).diagnostics());
  };
  CHECK(found(Layout::Shard(0, 8)).find("MS0306") == std::string::npos);
  for (const Layout& layout : {Layout::Shard(0, 2), Layout::Shard(1), Layout::Packed(0, {{4}, {4}})}) {
    INFO(found(layout));
    CHECK(found(layout).find(
              "'embed' has lookup = \"masked\", but tp does not shard the weight into one interval of rows") !=
          std::string::npos);
    CHECK(found(layout).find("p.lua:2") != std::string::npos);
  }
}

TEST_CASE("every row of the algebra, and no other") {
  const std::vector<Layout> layouts = {Layout::Replicate(), Layout::Shared(), Layout::Shard(0), Layout::Shard(1),
                                       Layout::Partial()};
  int rows = 0;
  for (const Layout& from : layouts) {
    for (const Layout& to : layouts) rows += from != to && RowOf(from, to) ? 1 : 0;
  }
  // replicate: 1 + 2; each shard: 3; partial: 2 + 2; shared: 1.
  CHECK(rows == 3 + 6 + 4 + 1);
  // Only features that arrive full can be shared in part, and such a layout cannot be redistributed.
  for (const Layout& other : layouts) {
    CHECK(RowOf(other, Layout::SharedLast(4)).has_value() == (other == Layout::Replicate()));
    CHECK_FALSE(RowOf(Layout::SharedLast(4), other));
  }
  CHECK_FALSE(RowOf(Layout::Shard(0, 4), Layout::Shard(0, 2)));
}

}  // namespace
}  // namespace moonshard
