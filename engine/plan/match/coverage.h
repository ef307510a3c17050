// Coverage: findings about rules and brace alternatives that match nothing, and the nearest match for each: a real path
// with a small edit distance, or the pattern without a common mistake (one * for several components, brackets for
// braces, slashes for dots).
// Stage: match; the REPL uses the nearest matches too.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/core/base/diagnostic.h"
#include "engine/layout/module_tree.h"
#include "engine/plan/match/match.h"
#include "engine/plan/match/pattern.h"
#include "engine/plan/plan/plan.h"

namespace moonshard {

// kUnmatchedRule for every rule without a match, kUnmatchedAlternative for every brace alternative without one, each
// with its nearest match. A rule that matches only modules which an overriding rule claims is not a finding: that is
// the purpose of extending a plan. `matched_anything[i]`: whether rule i matched before precedence was applied;
// `patterns[i]` belongs to plan.rules[i]. `numbers_seen[i]`: of a pattern with a range_component that matched modules,
// for each alternative whether one of them has its number; else empty.
Diagnostics CheckCoverage(const MatchedPlan& matched, const std::vector<Pattern>& patterns,
                          const std::vector<bool>& matched_anything,
                          const std::vector<std::vector<bool>>& numbers_seen);

// The nearest match for a rule whose pattern matches nothing, as the help of a finding: one or two sentences, never
// empty.
std::string NearestMatchText(const ModuleTree& tree, const Rule& rule);
// The same for a pattern of a section (fsdp, recompute, keep_dtype), which can match any of `paths`.
std::string NearestMatchText(const std::vector<std::string_view>& paths, const ModulePattern& pattern);

}  // namespace moonshard
