#include "engine/plan/resolve/resolve_plan.h"

#include <catch2/catch.hpp>

#include <algorithm>

#include "tests/support/compiled_mlp.h"

namespace moonshard {
namespace {

using test::MakeRule;
using test::Mesh;

std::shared_ptr<const ModuleTree> MlpTree() {
  return std::make_shared<const ModuleTree>(
      TreeFromText("mlp Mlp\nmlp.up Linear weight:float32[8, 4]\nmlp.down Linear weight:float32[4, 8]\n"));
}

// up colwise; down rowwise, whose output `leaves` so.
std::shared_ptr<const Plan> MlpPlan(const Placement& leaves, const std::string& down = "mlp.down") {
  const Placement replicate = Layout::Replicate();
  const Placement last = Layout::Shard(-1);
  auto plan = std::make_shared<Plan>();
  plan->name = "mlp";
  plan->rules.push_back(
      MakeRule("mlp.up", "colwise", Layout::Shard(0), {replicate, Placement(Layout::Shared())}, {last, last}, 1));
  plan->rules.push_back(
      MakeRule(down, "rowwise", Layout::Shard(1), {last, last}, {Placement(Layout::Partial()), leaves}, 2));
  return plan;
}

std::vector<std::string> NamesOf(const std::vector<PassRecord>& passes) {
  std::vector<std::string> names;
  for (const PassRecord& pass : passes) names.push_back(pass.name);
  return names;
}

TEST_CASE("every pass leaves a record with what it made and found") {
  const Resolution resolved = RunPasses(MlpPlan(Layout::Replicate()), MlpTree(), Mesh("tp=2"));
  REQUIRE(resolved.compiled);
  CHECK(NamesOf(resolved.passes) == std::vector<std::string>{"match", "adapters", "compile", "lint-share", "flow",
                                                             "lint-large", "lint-shards", "lint-heads",
                                                             "lint-head-order", "lint-order", "lint-stream",
                                                             "lint-partial", "lint-norms", "lint-cost"});
  CHECK(resolved.passes[0].made == "2 of 3 modules by 2 rules");
  CHECK(resolved.passes[1].made == "0 modules of factors");
  CHECK(resolved.passes[2].made == "3 distinct step lists");
  const auto spent = std::ranges::count_if(resolved.passes, [](const PassRecord& p) { return p.seconds > 0; });
  CHECK(spent > 0);
  const std::string text = PassesText(resolved.passes);
  CHECK(std::ranges::count(text, '\n') == 15);  // and the sum
  CHECK_THAT(text, Catch::StartsWith("match ") && Catch::Contains("\ntotal "));
  const JsonValue json = PassesJson(resolved.passes);
  CHECK(json.AsArray().size() == 14);
  CHECK(json.AsArray()[0].Find("made")->AsString() == "2 of 3 modules by 2 rules");
}

TEST_CASE("after a pass that fails there are no others, and what was made before it is kept") {
  const Resolution unmatched = RunPasses(MlpPlan(Layout::Replicate(), "mlp.dwn"), MlpTree(), Mesh("tp=2"));
  // The styles of the rules that match are checked all the same.
  CHECK(NamesOf(unmatched.passes) == std::vector<std::string>{"match", "compile"});
  CHECK(unmatched.passes.front().errors == 1);
  CHECK(unmatched.passes.back().errors == 0);
  CHECK(!unmatched.matched);
  CHECK(unmatched.tree != nullptr);
  CHECK(unmatched.mesh == Mesh("tp=2"));

  auto plan = std::make_shared<Plan>(*MlpPlan(Layout::Replicate()));
  plan->rules.front().style.params["weight"] = Placement(Layout::Shard(5));
  const Resolution bad_dim = RunPasses(plan, MlpTree(), Mesh("tp=2"));
  CHECK(NamesOf(bad_dim.passes) == std::vector<std::string>{"match", "adapters", "compile"});
  CHECK(bad_dim.matched);
  CHECK(!bad_dim.compiled);
  CHECK(bad_dim.diagnostics.front().finding == Finding::kBadDim);
}

TEST_CASE("a quantized checkpoint under a plan for weights has one error for a rule, which names the format") {
  const auto tree = std::make_shared<const ModuleTree>(
      TreeFromText("mlp Mlp\nmlp.up ? qweight:int32[4, 1] qzeros:int32[1, 1] scales:float16[1, 8]\n"
                   "mlp.down ? qweight:int32[1, 4] qzeros:int32[1, 1] scales:float16[1, 4] g_idx:int32[8]\n"));
  JsonValue config = JsonValue::Object{{"quantization_config", JsonValue::Object{{"quant_method", "gptq"}}}};
  const Resolution resolved = RunPasses(MlpPlan(Layout::Replicate()), tree, Mesh("tp=2"), config);
  CHECK(!resolved.compiled);
  const std::string text = ToText(resolved.diagnostics);
  INFO(text);
  CHECK(resolved.diagnostics.size() == 2);
  CHECK_THAT(text, Catch::Contains("'mlp.up.qweight' contains packed integers (AWQ)") &&
                       Catch::Contains("'mlp.down.qweight' contains packed integers (GPTQ)") &&
                       Catch::Contains("config.json declares quantization_config.quant_method = 'gptq'"));
  // A format without integers is named by the config alone.
  const auto unknown = std::make_shared<const ModuleTree>(
      TreeFromText("mlp Mlp\nmlp.up ? grid:float32[8, 4]\nmlp.down ? grid:float32[4, 8]\n"));
  config.AsObject()["quantization_config"].AsObject()["quant_method"] = "higgs";
  CHECK_THAT(ToText(RunPasses(MlpPlan(Layout::Replicate()), unknown, Mesh("tp=2"), config).diagnostics),
             Catch::Contains("error[MS0302]") && Catch::Contains("quant_method = 'higgs'"));
}

TEST_CASE("a plan with adapters resolves to the tree with their factors, and one that does not fit ends the passes") {
  auto plan = std::make_shared<Plan>(*MlpPlan(Layout::Replicate()));
  plan->adapters.emplace_back().modules = {{"mlp.up"}};
  plan->adapters.back().rank = 2;
  const auto bare = MlpTree();
  const Resolution resolved = RunPasses(plan, bare, Mesh("tp=2"));
  REQUIRE(resolved.compiled);
  CHECK(resolved.passes[1].made == "2 modules of factors");
  CHECK(resolved.tree->Find("mlp.up.lora_B") >= 0);
  CHECK(resolved.compiled->live_tree() == bare);
  CHECK(bare->Find("mlp.up.lora_B") < 0);

  plan->adapters.back().rank = 1000;
  const Resolution unfit = RunPasses(plan, bare, Mesh("tp=2"));
  CHECK(NamesOf(unfit.passes) == std::vector<std::string>{"match", "adapters"});
  CHECK(!unfit.compiled);
  CHECK(unfit.tree == bare);
  CHECK(unfit.diagnostics.front().finding == Finding::kStyleDoesNotFit);
}

TEST_CASE("an error of lint refuses the plan, after every lint pass has run") {
  const Placement partial = Layout::Partial();
  const Resolution resolved = RunPasses(MlpPlan(partial), MlpTree(), Mesh("tp=2"));
  REQUIRE(HasErrors(resolved.diagnostics));
  CHECK(!resolved.compiled);
  CHECK(resolved.passes.back().name == "lint-cost");
  const auto lint = std::ranges::find(resolved.passes, "lint-partial", &PassRecord::name);
  REQUIRE(lint != resolved.passes.end());
  CHECK(lint->errors == 1);
  const Result<CompiledPlan> result = ResolvePlan(MlpPlan(partial), MlpTree(), Mesh("tp=2"));
  CHECK(!result.ok());
  CHECK(ToText(result.diagnostics()) == ToText(resolved.diagnostics));
  // On one rank nothing is partial.
  const Resolution alone = RunPasses(MlpPlan(partial), MlpTree(), Mesh(""));
  CHECK(alone.compiled);
  CHECK(std::ranges::count(alone.passes, "not run: one rank", &PassRecord::made) == 1);
  CHECK(std::ranges::count(alone.passes, "not run: tp has one rank", &PassRecord::made) == 8);
}

TEST_CASE("the compiled plan has all findings, and nothing of the times") {
  const auto plan = MlpPlan(Layout::Replicate());
  const auto tree = std::make_shared<const ModuleTree>(
      TreeFromText("mlp Mlp\nmlp.up Linear weight:float32[8, 4]\nmlp.down Linear weight:float32[4, 8]\nother Linear "
                   "weight:float32[64, 64]\n"));
  const Resolution first = RunPasses(plan, tree, Mesh("tp=2"));
  const Resolution second = RunPasses(plan, tree, Mesh("tp=2"));
  REQUIRE(first.compiled);
  REQUIRE(!first.diagnostics.empty());
  CHECK(ToText(first.compiled->findings) == ToText(first.diagnostics));
  CHECK(first.compiled->CanonicalText() == second.compiled->CanonicalText());
  CHECK(ToText(first.diagnostics) == ToText(second.diagnostics));
  size_t warnings = 0;
  for (const PassRecord& pass : first.passes) warnings += pass.warnings;
  CHECK(warnings == first.diagnostics.size());
}

}  // namespace
}  // namespace moonshard
