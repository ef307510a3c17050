// Match: assigns rules to modules.   Plan + ModuleTree -> MatchedPlan
//
// Precedence: a rule of the plan itself wins over one of the plan it extends; two rules of one level that claim the
// same module are an error that names both lines. A rule for parameters (`at(path, layout)`) claims parameters by their
// full path and overrides what the module's rule declares for them.
// Stage before: dsl/language/eval (Plan), tree. Stage after: compile.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/core/base/result.h"
#include "engine/layout/module_tree.h"
#include "engine/plan/plan/plan.h"

namespace moonshard {

struct MatchedPlan {
  static constexpr int32_t kNoRule = -1;

  std::shared_ptr<const Plan> plan;
  std::shared_ptr<const ModuleTree> tree;
  std::vector<int32_t> rule_of;  // per module of the tree: index into plan->rules, or kNoRule
  std::vector<int64_t> matches;  // per rule: modules (or parameters) it claims
  struct ParameterRule {
    ParamRef parameter;
    int32_t rule = 0;
  };
  std::vector<ParameterRule> parameter_rules;  // sorted by parameter
  // Paths of the modules that the plan's fsdp wraps, sorted. With a tree from headers, modules that own no parameter
  // are included, which such a tree does not have.
  std::vector<std::string> units;
  std::vector<std::string> ignored;  // the same for the modules that fsdp ignores
  struct OfSection {
    std::string path;
    int32_t section = 0;  // index into the plan's sections of this kind
  };
  std::vector<OfSection> recomputed;      // sorted by path; if several sections match, the first
  std::vector<OfSection> kept_dtypes;     // the same
  std::vector<std::string> kept_results;  // sorted: modules whose results recomputation keeps

  // The rule that claims one parameter by its path, or kNoRule.
  int32_t ParameterRuleOf(ParamRef parameter) const;
  // "path <- rule N (pattern)", one module a line in tree order; unclaimed modules that own parameters too.
  std::string ToText() const;
};

// Errors, all at once: kBadPattern, kPatternMemory, kRuleConflict, kUnmatchedRule and kUnmatchedAlternative (unless the
// rule is optional; with the nearest match), for patterns of sections too. With a tree from headers, a rule that only
// redistributes may match nothing, with a note: its module may own no parameter.
Result<MatchedPlan> MatchRules(std::shared_ptr<const Plan> plan, std::shared_ptr<const ModuleTree> tree);

// Paths of the modules that a pattern matches, in tree order; for `model:find` of plans and for the program.
Result<std::vector<std::string>> FindModules(const ModuleTree& tree, std::string_view pattern,
                                             PatternSyntax syntax = PatternSyntax::kGlob);

}  // namespace moonshard
