// Coverage: findings about rules and brace alternatives that match nothing, and the nearest match for each: a real path
// with a small edit distance, or the pattern with a common mistake corrected (one * for several components, brackets
// for braces, slashes for dots).
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

// Returns kUnmatchedRule for every rule without a match, and kUnmatchedAlternative for every pair of braces with
// alternatives that match nothing. The help is the nearest match, or for several alternatives in one pair of braces the
// alternatives that match a module. Optional rules are not checked. A rule whose modules are all claimed by an
// overriding rule is not reported, since a plan that extends another plan may override rules.
// `patterns[i]`: the pattern of plan.rules[i]. `matched_anything[i]`: whether rule i matched before precedence was
// applied. `numbers_seen[i][j]`: whether a module that pattern i matched has the number of alternative j; only for
// patterns with a range_component that matched modules, else `numbers_seen[i]` is empty.
Diagnostics CheckCoverage(const MatchedPlan& matched, const std::vector<Pattern>& patterns,
                          const std::vector<bool>& matched_anything,
                          const std::vector<std::vector<bool>>& numbers_seen);

// Returns the nearest match for a rule whose pattern matches nothing, as the help of a finding: one or two sentences,
// never empty.
std::string NearestMatchText(const ModuleTree& tree, const Rule& rule);
// The same for a pattern of a section (fsdp, recompute, keep_dtype, lora), which can match any of `paths`.
std::string NearestMatchText(const std::vector<std::string_view>& paths, const ModulePattern& pattern);

}  // namespace moonshard
