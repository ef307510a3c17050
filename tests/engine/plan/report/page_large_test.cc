// Reports on models of many modules: the page stays small where things are alike, and quick where they are not.
#include <catch2/catch.hpp>
#include <memory>

#include "dsl/language/eval/load_plan.h"
#include "dsl/planning/resolve_model/resolve_model.h"
#include "tests/bench/large_tree.h"
#include "tests/engine/plan/report/pages.h"

namespace moonshard::test {
namespace {

// 61 layers of 256 experts.
CompiledPlan LargePlan() {
  const std::shared_ptr<const ModuleTree> tree = bench::MakeLargeTree();
  PlanInputs inputs;
  inputs.mesh = MeshShape::Parse("tp=8").ValueOrThrow();
  inputs.model = tree.get();
  const std::string text =
      "return plan { api = 1,\n"
      "  at(\"model.layers.*.mlp.experts.*.{gate,up}_proj\", colwise { input = shared }),\n"
      "  at(\"model.layers.*.mlp.experts.*.down_proj\", rowwise { output = partial }),\n"
      "  at(\"model.layers.*.mlp\", style { name = \"block\", inputs = { { replicate, shared } }, outputs = { { "
      "partial, replicate } } }),\n"
      "  at(\"model.layers.*.mlp.gate\", replicated()),\n"
      "  default(replicated()) }\n";
  Plan plan = EvaluatePlan(text, "large.lua", inputs).ValueOrThrow();
  Resolution resolution = RunPasses(std::make_shared<const Plan>(std::move(plan)), tree, inputs.mesh);
  INFO(ToText(resolution.diagnostics));
  REQUIRE(resolution.compiled);
  return *std::move(resolution.compiled);
}

// 3,000 layers of which no two are alike: nothing folds.
CompiledPlan UnlikePlan() {
  constexpr int64_t kLayers = 3000;
  auto tree = std::make_shared<ModuleTree>();
  for (int64_t i = 0; i < kLayers; ++i) {
    tree->Add("layers." + std::to_string(i), "Linear", {{"weight", {i + 1, 4}, DType::kF32, false}});
  }
  return *RunPasses(std::make_shared<const Plan>(), tree, MeshShape()).compiled;
}

TEST_CASE("61 layers of 256 experts stay a small page") {
  Pages pages;
  if (!pages) return;
  Browser& browser = pages.Open(LargePlan());
  WARN(pages.bytes() / 1024 << " KiB, open after " << browser.seconds_to_load() << " s");
  CHECK(pages.bytes() < 200 * 1024);
  CHECK(browser.Evaluate("document.querySelectorAll('*').length").AsInt() < 3000);
  browser.Evaluate("document.getElementById('expand').click()");
  CHECK(browser.Evaluate("document.querySelectorAll('*').length").AsInt() < 10000);
  browser.Key("/");
  browser.Type("layers.57.mlp.experts.200.gate_proj");
  CHECK(Focused(browser).empty());  // the search itself
  browser.Key("Enter");
  CHECK(browser.Evaluate("[...document.querySelectorAll('[role=treeitem] .label')].map((e) => e.textContent).join()")
            .AsString() == "model,layers,{0..60},mlp,experts,{0..255},gate_proj");
  KeepPicture(browser, "large");
  CHECK(browser.errors().empty());
}

TEST_CASE("where nothing folds, the document holds some rows and the rest on demand") {
  Pages pages;
  if (!pages) return;
  Browser& browser = pages.Open(UnlikePlan());
  browser.Evaluate("document.getElementById('expand').click()");
  CHECK(RowCount(browser) == 400);
  CHECK(browser.Evaluate("document.querySelectorAll('*').length").AsInt() < 8000);
  browser.Evaluate("document.querySelector('.more').click()");
  CHECK(RowCount(browser) == 800);
  browser.Evaluate("document.getElementById('search').focus()");
  browser.Type("layers.2999");
  CHECK(RowCount(browser) == 2);
  CHECK(browser.errors().empty());
}

}  // namespace
}  // namespace moonshard::test
