#include "engine/plan/match/candidates.h"

#include <catch2/catch.hpp>

#include "tests/support/tree_text.h"

namespace moonshard {
namespace {

Rule RuleOf(const std::string& pattern, int level = 0) {
  Rule rule;
  rule.pattern = pattern;
  rule.level = level;
  return rule;
}

TEST_CASE("candidates are all rules that match, before one wins") {
  const ModuleTree tree = TreeFromText(
      "layers.{0..1}.q Linear weight:float32[4, 4]\nlayers.{0..1}.k Linear weight:float32[4, 4]\n"
      "head Linear weight:float32[4, 4]\n");
  Plan plan;
  plan.rules = {RuleOf("layers.*.q", 1), RuleOf("layers.*.{q,k}", 1), RuleOf("layers.0.q"),
                RuleOf("head.weight"),   RuleOf("nothing.*"),         RuleOf("layers.{0")};
  plan.rules[3].parameter = Placement(Layout::Shard(0));
  const Candidates found = FindCandidates(plan, tree);
  const auto of = [&](const char* path) { return found.of_module[static_cast<size_t>(tree.Find(path))]; };
  using Rules = std::vector<int32_t>;
  CHECK(of("layers.0.q") == Rules{0, 1, 2});
  CHECK(of("layers.1.q") == Rules{0, 1});
  CHECK(of("layers.1.k") == Rules{1});
  CHECK(of("head").empty());
  REQUIRE(found.of_parameter.size() == 1);
  CHECK(tree.PathOf(found.of_parameter[0].parameter) == "head.weight");
  CHECK(found.of_parameter[0].rules == Rules{3});
  REQUIRE(found.diagnostics.size() == 1);
  CHECK(found.diagnostics[0].finding == Finding::kBadPattern);
  CHECK(RulesMatching(plan, "layers.0.q") == Rules{0, 1, 2});
  CHECK(RulesMatching(plan, "head.weight") == Rules{3});
  CHECK(RulesMatching(plan, "nowhere").empty());
  CHECK(WinnerOf(plan, {0, 1, 2}) == 2);
  CHECK(WinnerOf(plan, {0, 1}) == 0);
}

}  // namespace
}  // namespace moonshard
