#include "engine/plan/match/match.h"

#include <re2/re2.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <memory>
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

// A path has two numbers; of most patterns one of them decides.
TEST_CASE("which of a path's numbers decide is no matter of the result") {
  std::mt19937 random(12);
  const std::vector<std::string> globs = {"layers.{0..2}.experts.*.w1",
                                          "layers.*.experts.{1..3}.*",
                                          "**.experts.2.w2",
                                          "{layers.1,layers.3}.**",
                                          "layers.[1-3].**",
                                          "layers.?.norm",
                                          "layers.1.**.w1",
                                          "layers.*.{norm,experts.3.w1}",
                                          "layers.2.experts.*.w?",
                                          "l*s.4.**",
                                          "layers.*.experts.1?.w{1,2}",
                                          "layers.3",
                                          "**.{1..2}.*",
                                          "{a,layers.0.norm}",
                                          "layers.*.experts.*.w2"};
  std::vector<std::string> paths;
  for (int layer = 0; layer < 6; ++layer) {
    const std::string of = "layers." + std::to_string(layer);
    paths.insert(paths.end(), {of, of + ".norm"});
    for (int expert = 0; expert < 12; expert += layer % 2 + 1) {
      for (const char* name : {".w1", ".w2"}) paths.push_back(of + ".experts." + std::to_string(expert) + name);
    }
  }
  for (int round = 0; round < 200; ++round) {
    if (round % 2 == 1) std::shuffle(paths.begin(), paths.end(), random);
    auto tree = std::make_shared<ModuleTree>();
    for (const std::string& path : paths) tree->Add(path, "", {});
    std::vector<std::string> patterns;
    for (int i = 0; i < 3; ++i) patterns.push_back(globs[random() % globs.size()]);
    const MatchedPlan matched = MatchRules(PlanOf(patterns), tree).ValueOrThrow();
    std::vector<std::unique_ptr<RE2>> alone;
    for (const std::string& pattern : patterns) {
      alone.push_back(std::make_unique<RE2>(TranslatePattern(pattern, PatternSyntax::kGlob).ValueOrThrow().regex));
    }
    for (size_t m = 0; m < paths.size(); ++m) {
      int32_t expected = MatchedPlan::kNoRule;
      for (size_t i = patterns.size(); i-- > 0;) {
        if (RE2::FullMatch(paths[m], *alone[i])) expected = static_cast<int32_t>(i);
      }
      CAPTURE(paths[m], patterns);
      REQUIRE(matched.rule_of[m] == expected);
    }
  }
}

// The numbers of a range are noted while modules are matched, other alternatives are matched by themselves: either way
// an alternative is missing if its own expression matches no module.
TEST_CASE("the missing alternatives are those that match nothing by themselves") {
  std::mt19937 random(13);
  const std::vector<std::string> globs = {"layers.{0..5}.{a,b}",
                                          "layers.{2..14}.a",
                                          "{layers,stages}.{0..4}.a",
                                          "layers.{0..3}.sub.{0..2}",
                                          "{layers,x.y}.{0..3}.a",
                                          "**.{0..5}.b",
                                          "layers.{0..5}.**",
                                          "layers.{0..3}{,x}.a",
                                          "layers.*.sub.{1..12}",
                                          "{layers.{0..2},stages.{0..1}}.a",
                                          "layers.{0..12}.{a,sub.{0..1}}",
                                          "{layers,stages}.{0..11}.{a,b}"};
  int missing_alone = 0;
  for (int round = 0; round < 400; ++round) {
    auto tree = std::make_shared<ModuleTree>();
    for (const std::string top : {"layers", "stages"}) {
      for (int layer = 0; layer < 14; ++layer) {
        const std::string of = top + "." + std::to_string(layer);
        for (const char* name : {".a", ".b", ".sub.0", ".sub.1", ".sub.2", ".sub.10"}) {
          if (random() % 4 != 0) tree->Add(of + name, "", {});
        }
      }
    }
    const std::string& glob = globs[random() % globs.size()];
    auto plan = std::make_shared<Plan>(*PlanOf({glob}));
    plan->rules[0].optional = false;
    const Pattern pattern = TranslatePattern(glob, PatternSyntax::kGlob).ValueOrThrow();
    const auto matches = [&](const std::string& text) {
      const RE2 regex(text);
      return std::ranges::any_of(tree->modules(), [&](const Module& m) { return RE2::FullMatch(m.path, regex); });
    };
    if (!matches(pattern.regex)) continue;  // one finding, of the rule
    std::vector<std::string> expected;
    for (size_t first = 0; first < pattern.alternatives.size();) {
      std::vector<std::string> missing;
      const int group = pattern.alternatives[first].group;
      for (; first < pattern.alternatives.size() && pattern.alternatives[first].group == group; ++first) {
        if (!matches(pattern.alternatives[first].regex)) missing.push_back(pattern.alternatives[first].text);
      }
      if (missing.size() == 1) expected.push_back("alternative '" + missing[0] + "' of");
      if (missing.size() > 1) expected.push_back("alternatives " + missing[0]);
      missing_alone += missing.size() == 1 ? 1 : 0;
    }
    const Result<MatchedPlan> matched = MatchRules(plan, tree);
    CAPTURE(glob, ToText(matched.diagnostics()), expected);
    REQUIRE(matched.diagnostics().size() == expected.size());
    for (size_t i = 0; i < expected.size(); ++i) REQUIRE(matched.diagnostics()[i].message.starts_with(expected[i]));
  }
  CHECK(missing_alone > 40);
}

TEST_CASE("FindModules lists paths in tree order") {
  const ModuleTree tree = TreeFromText("b.x ?\na.x ?\na.y ?\n");
  CHECK(FindModules(tree, "*.x").ValueOrThrow() == std::vector<std::string>{"b.x", "a.x"});
  CHECK_FALSE(FindModules(tree, "{").ok());
}

}  // namespace
}  // namespace moonshard
