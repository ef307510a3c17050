#include "engine/plan/explain/difference.h"

#include <catch2/catch.hpp>

#include "engine/plan/compile/cost.h"
#include "engine/plan/explain/texts.h"
#include "tests/support/compiled_mlp.h"

namespace moonshard {
namespace {

using test::CompileMlp;
using test::MakeRule;
using Part = PlanDifference::Part;

CompiledPlan Compiled(const Plan& plan, std::shared_ptr<const ModuleTree> tree, const MeshShape& mesh) {
  return ResolvePlan(std::make_shared<const Plan>(plan), std::move(tree), mesh).ValueOrThrow();
}

TEST_CASE("a plan does nothing otherwise than itself") {
  CHECK(Compare(CompileMlp("tp=2"), CompileMlp("tp=2")).empty());
  CHECK(Compare(CompileMlp("tp=2"), CompileMlp("tp=4")).empty());  // layouts are the same on any mesh
}

TEST_CASE("a rule over the others: what it takes, and what happens to its modules") {
  const CompiledPlan before = CompileMlp("tp=2");
  Plan plan = *before.plan;
  for (Rule& rule : plan.rules) ++rule.level;
  const Placement replicate = Layout::Replicate();
  Rule full = MakeRule("mlp.up", "whole", Layout::Replicate(), {replicate, replicate}, {replicate, replicate}, 9);
  full.style.outputs.clear();
  plan.rules.insert(plan.rules.begin(), full);
  const CompiledPlan after = Compiled(plan, before.tree, before.mesh);
  const PlanDifference difference = Compare(before, after);
  REQUIRE(difference.rules.size() == 2);
  CHECK(difference.rules[0].pattern == "mlp.up");
  CHECK(difference.rules[0].before == PlanDifference::kAbsent);
  CHECK(difference.rules[0].after == 1);
  CHECK(difference.rules[0].source == "p.lua:9");
  CHECK(difference.rules[1].pattern == "mlp.{gate,up}");
  CHECK(difference.rules[1].before == 2);
  CHECK(difference.rules[1].after == 1);
  REQUIRE(difference.modules.size() == 1);
  CHECK(difference.modules[0].path == "mlp.up");
  CHECK(difference.modules[0].parts == std::vector<Part>{{"style", "colwise", "whole"},
                                                         {"weight", "shard(0)", "replicate"},
                                                         {"input", "replicate -> shared", "replicate"},
                                                         {"output", "shard(-1)", ""}});
  // The other way round the rule is gone.
  const PlanDifference back = Compare(after, before);
  REQUIRE(back.rules.size() == 2);
  CHECK(back.rules[1].pattern == "mlp.up");
  CHECK(back.rules[1].after == PlanDifference::kAbsent);
  CHECK(back.modules[0].parts[3] == Part{"output", "", "shard(-1)"});
}

TEST_CASE("a rule with the pattern of another one is told from it") {
  const CompiledPlan before = CompileMlp("tp=2");
  Plan plan = *before.plan;
  for (Rule& rule : plan.rules) ++rule.level;
  Rule same = plan.rules.back();  // mlp.down
  same.level = 0;
  same.source.line = 9;
  plan.rules.insert(plan.rules.begin(), same);
  const PlanDifference difference = Compare(before, Compiled(plan, before.tree, before.mesh));
  REQUIRE(difference.rules.size() == 2);
  CHECK(difference.rules[0].source == "p.lua:9");
  CHECK(difference.rules[0].before == PlanDifference::kAbsent);
  CHECK(difference.rules[1].source == "p.lua:2");
  CHECK(difference.rules[1].before == 1);
  CHECK(difference.rules[1].after == 0);
  CHECK(difference.modules.empty());  // it says the same
}

TEST_CASE("modules that one of the models lacks") {
  const CompiledPlan before = CompileMlp("tp=2");
  ModuleTree tree = *before.tree;
  tree.Add("extra", "Linear", {{"weight", {4, 4}, DType::kF32, false}});
  const CompiledPlan after = Compiled(*before.plan, std::make_shared<const ModuleTree>(tree), before.mesh);
  const PlanDifference more = Compare(before, after);
  REQUIRE(more.modules.size() == 1);
  CHECK(more.modules[0].path == "extra");
  CHECK(more.modules[0].parts == std::vector<Part>{{"module", "", "present"}});
  CHECK(Compare(after, before).modules[0].parts == std::vector<Part>{{"module", "present", ""}});
}

TEST_CASE("modules that have an adapter in one plan only, and the factors") {
  const CompiledPlan before = CompileMlp("tp=2");
  Plan plan = *before.plan;
  Adapter& adapter = plan.adapters.emplace_back();
  adapter.modules = {{"mlp.up"}};
  adapter.rank = 2;
  const CompiledPlan after = Compiled(plan, before.tree, before.mesh);
  const PlanDifference difference = Compare(before, after);
  REQUIRE(difference.modules.size() == 4);
  CHECK(difference.modules[0].path == "mlp.up.lora_A");
  CHECK(difference.modules[0].parts == std::vector<Part>{{"module", "", "present"}});
  CHECK(difference.modules[2].path == "(root)");
  CHECK(difference.modules[2].parts == std::vector<Part>{{"active adapter", "", "default"}});
  CHECK(difference.modules[3].path == "mlp.up");
  CHECK(difference.modules[3].parts == std::vector<Part>{{"adapter default", "", "rank=2 alpha=8"}});
  CHECK(Compare(after, before).modules[3].parts == std::vector<Part>{{"adapter default", "rank=2 alpha=8", ""}});
}

TEST_CASE("settings of adapters, and which of them is active") {
  const CompiledPlan bare = CompileMlp("tp=2");
  Plan plan = *bare.plan;
  Adapter one;
  one.name = "one";
  one.modules = {{"mlp.{up,gate}"}};
  one.rank = 2;
  Adapter other = one;
  other.name = "other";
  other.modules = {{"mlp.up"}};
  plan.adapters = {one, other};
  const CompiledPlan before = Compiled(plan, bare.tree, bare.mesh);
  CHECK(Compare(before, before).empty());
  plan.adapters = {other, one};
  const PlanDifference active = Compare(before, Compiled(plan, bare.tree, bare.mesh));
  REQUIRE(active.modules.size() == 1);
  CHECK(active.modules[0].parts == std::vector<Part>{{"active adapter", "one", "other"}});
  one.alpha = 3;
  plan.adapters = {one, other};
  const CompiledPlan after = Compiled(plan, bare.tree, bare.mesh);
  const PlanDifference settings = Compare(before, after);
  REQUIRE(settings.modules.size() == 2);
  CHECK(settings.modules[0].path == "mlp.gate");
  CHECK(settings.modules[1].path == "mlp.up");
  CHECK(settings.modules[1].parts == std::vector<Part>{{"adapter one", "rank=2 alpha=8", "rank=2 alpha=3"}});
  CHECK(after.Hash() != before.Hash());
}

TEST_CASE("modules that are units or recomputed in one plan only") {
  CompiledPlan before = CompileMlp("tp=2");
  CompiledPlan after = before;
  before.recomputed = {"layers.0", "layers.1"};
  after.recomputed = {"layers.1", "layers.2", "layers.3"};
  after.units.resize(1);  // the root
  const PlanDifference difference = Compare(before, after);
  REQUIRE(difference.modules.size() == 3);
  CHECK(difference.modules[0].path == "(root)");
  CHECK(difference.modules[0].parts == std::vector<Part>{{"fsdp unit", "", "yes"}});
  CHECK(difference.modules[1].path == "layers.0");
  CHECK(difference.modules[1].parts == std::vector<Part>{{"recomputed", "yes", ""}});
  CHECK(difference.modules[2].path == "layers.{2,3}");
  CHECK(difference.modules[2].parts == std::vector<Part>{{"recomputed", "", "yes"}});
  CHECK(difference.modules[2].modules == 2);
}

TEST_CASE("bytes and moves in words") {
  CHECK(BytesText(0) == "0 B");
  CHECK(BytesText(1023) == "1023 B");
  CHECK(BytesText(1536) == "1.50 KiB");
  CHECK(BytesText(int64_t{7} << 30) == "7.00 GiB");
  const Redistribution reduce{Placement(Layout::Partial()), Placement(Layout::Replicate())};
  CHECK(CollectivesText(reduce, test::Mesh("tp=2")) == "all_reduce forward");
  CHECK(CollectivesText(reduce, test::Mesh("tp=1")).empty());
  CHECK(CollectiveText(reduce, test::Mesh("tp=2"), Direction::kBackward).empty());
  CHECK(RedistributionText(reduce) == "partial -> replicate");
  CHECK(RedistributionText({reduce.to, reduce.to}) == "replicate");
}

}  // namespace
}  // namespace moonshard
