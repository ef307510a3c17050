// Match: assigns rules to modules.   Plan + ModuleTree -> MatchedPlan
//
// Precedence: a rule of the plan itself overrides a rule of the plan that it extends. Two rules of one level that match
// the same module are an error with both source lines. A rule for parameters (`at(path, layout)`) claims parameters by
// their full path and overrides the layouts that the module's rule declares for them.
// Stage before: dsl/language/eval (Plan), tree. Stage after: compile.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
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
  // Of a plan with adapters, once `tree` has their factors: the tree without them; else null.
  std::shared_ptr<const ModuleTree> bare_tree;
  std::vector<int32_t> rule_of;  // per module of the tree: index into plan->rules, or kNoRule
  std::vector<int64_t> matches;  // per rule: number of modules and parameters that it claims
  struct ParameterRule {
    ParamRef parameter;
    int32_t rule = 0;
  };
  std::vector<ParameterRule> parameter_rules;  // sorted by parameter
  // Paths of the modules that the plan's fsdp wraps, sorted. The paths include modules without parameters, which a tree
  // from headers does not list.
  std::vector<std::string> units;
  std::vector<std::string> ignored;  // the same for the modules that fsdp ignores
  struct OfSection {
    std::string path;
    int32_t section = 0;  // index into the plan's sections of this kind
  };
  std::vector<OfSection> recomputed;      // sorted by path; if several sections match a module, the first one
  std::vector<OfSection> kept_dtypes;     // the same
  std::vector<OfSection> adapted;         // the same for the sections of each adapter; then by name of the adapter
  std::vector<std::string> kept_results;  // sorted: modules whose results recomputation keeps

  // Returns the index of the rule that claims the parameter by its path, or kNoRule.
  int32_t ParameterRuleOf(ParamRef parameter) const;
  // Returns one line "path <- rule N (pattern)" for each claimed module and each module that owns parameters, in tree
  // order, then for each parameter that a rule claims by its path.
  std::string ToText() const;
};

// Returns all errors together: kBadPattern, kPatternMemory, kRuleConflict, kUnmatchedRule and kUnmatchedAlternative
// (with the nearest match; not for optional rules). Patterns of sections are checked too: kBadPattern, kUnmatchedRule,
// which is a warning for a section of `lora` whose modules all belong to earlier sections of its adapter.
// With a tree from headers, a rule that only redistributes and matches nothing is a note, since its module may own no
// parameters. Where all errors are of rules, alternatives or sections that match nothing and `incomplete` is not null,
// `*incomplete` is set to what the other rules match, so that their styles can be checked (CheckStyles).
Result<MatchedPlan> MatchRules(std::shared_ptr<const Plan> plan, std::shared_ptr<const ModuleTree> tree,
                               std::optional<MatchedPlan>* incomplete = nullptr);

// Returns the paths of the modules that `pattern` matches, in tree order. Errors: kBadPattern. For `model:find` in
// plans and for the command-line programs.
Result<std::vector<std::string>> FindModules(const ModuleTree& tree, std::string_view pattern,
                                             PatternSyntax syntax = PatternSyntax::kGlob);

}  // namespace moonshard
