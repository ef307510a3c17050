// Coverage: what to say about rules that claim nothing.
#pragma once

#include <string>
#include <vector>

#include "engine/core/base/diagnostic.h"
#include "engine/plan/match/match.h"
#include "engine/plan/match/pattern.h"

namespace moonshard {

// kUnmatchedRule for every rule without a match, kUnmatchedAlternative for every brace alternative without one, each
// with the nearest real path and the pattern that would fit it. A rule whose modules all belong to an overriding rule is
// no finding: that is what extending a plan is for. `matched_anything[i]` says whether rule i matched before precedence was applied;
// `patterns[i]` belongs to plan.rules[i].
Diagnostics CheckCoverage(const MatchedPlan& matched, const std::vector<Pattern>& patterns,
                          const std::vector<bool>& matched_anything);

}  // namespace moonshard
