// Candidates: every rule whose pattern matches a module or parameter, before precedence is applied. For debugging a
// plan (the REPL), including one that match.h refuses.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/core/base/diagnostic.h"
#include "engine/layout/module_tree.h"
#include "engine/plan/plan/plan.h"

namespace moonshard {

struct Candidates {
  // Per module of the tree: indices of the rules for modules whose pattern matches its path, ascending.
  std::vector<std::vector<int32_t>> of_module;
  // Parameters that a pattern matches by their own path: patterns of rules for parameters, of styles that may be given
  // to a parameter, and of rules that match no module. Sorted.
  struct OfParameter {
    ParamRef parameter;
    std::vector<int32_t> rules;
  };
  std::vector<OfParameter> of_parameter;
  Diagnostics diagnostics;  // kBadPattern for each rule left out; kPatternMemory: nothing was found
};

Candidates FindCandidates(const Plan& plan, const ModuleTree& tree);

// Indices of the rules whose pattern matches this path of a module or parameter, ascending; bad patterns are left out.
std::vector<int32_t> RulesMatching(const Plan& plan, std::string_view path);

// The rule among `candidates` that wins: the first of the lowest level. `candidates` is not empty.
int32_t WinnerOf(const Plan& plan, const std::vector<int32_t>& candidates);

}  // namespace moonshard
