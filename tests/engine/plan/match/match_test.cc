#include "engine/plan/match/match.h"

#include <re2/re2.h>
#include <catch2/catch.hpp>

#include <random>

#include "engine/plan/match/pattern.h"
#include "tests/support/tree_text.h"

namespace moonshard {
namespace {

std::shared_ptr<const Plan> PlanOf(const std::vector<std::string>& patterns) {
  auto plan = std::make_shared<Plan>();
  int line = 0;
  for (const std::string& pattern : patterns) {
    Rule rule;
    rule.pattern = pattern;
    rule.style.name = "style" + std::to_string(line);
    rule.optional = true;
    rule.level = line;  // every rule at its own level: never a conflict, the first match wins
    rule.source = {"p.lua", ++line, 0, 0, ""};
    plan->rules.push_back(std::move(rule));
  }
  return plan;
}

// Asking each pattern about each path, one after the other, must give the same: the set, the path classes and the
// precedence are only quicker.
TEST_CASE("matching in one pass is matching one by one") {
  std::mt19937 random(11);
  const std::vector<std::string> names = {"q_proj", "k_proj", "mlp", "norm"};
  const std::vector<std::string> globs = {
      "layers.*.q_proj", "layers.{0..2}.*", "layers.[1-3].mlp", "**.norm", "layers.*.{q,k}_proj", "layers.1?.*", "**",
      "layers.*.mlp"};
  for (int round = 0; round < 200; ++round) {
    auto tree = std::make_shared<ModuleTree>();
    for (int layer = 0; layer < 14; ++layer) {
      for (const std::string& name : names) {
        if (random() % 3 != 0) tree->Add("layers." + std::to_string(layer) + "." + name, "", {});
      }
    }
    std::vector<std::string> patterns;
    for (int i = 0; i < 4; ++i) patterns.push_back(globs[random() % globs.size()]);
    const MatchedPlan matched = MatchRules(PlanOf(patterns), tree).ValueOrThrow();
    for (size_t m = 0; m < tree->modules().size(); ++m) {
      int32_t expected = MatchedPlan::kNoRule;
      for (size_t i = patterns.size(); i-- > 0;) {
        const std::string regex = TranslatePattern(patterns[i], PatternSyntax::kGlob).ValueOrThrow().regex;
        if (RE2::FullMatch(tree->modules()[m].path, RE2(regex))) expected = static_cast<int32_t>(i);
      }
      CAPTURE(tree->modules()[m].path, patterns);
      REQUIRE(matched.rule_of[m] == expected);
    }
  }
}

TEST_CASE("FindModules lists paths in tree order") {
  const ModuleTree tree = TreeFromText("b.x ?\na.x ?\na.y ?\n");
  CHECK(FindModules(tree, "*.x").ValueOrThrow() == std::vector<std::string>{"b.x", "a.x"});
  CHECK_FALSE(FindModules(tree, "{").ok());
}

}  // namespace
}  // namespace moonshard
