// Candidates: all rules whose patterns match a module or parameter, before precedence is applied. For debugging a plan
// (the REPL, the report), including a plan that match.h rejects.
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
  // Parameters whose own path a pattern matches. Only these rules are tried: rules for parameters, rules with a bare
  // style, and rules that match no module. Sorted by parameter.
  struct OfParameter {
    ParamRef parameter;
    std::vector<int32_t> rules;
  };
  std::vector<OfParameter> of_parameter;
  Diagnostics diagnostics;  // kBadPattern for each rule that is left out; kPatternMemory: no rules are listed
};

// Returns the candidates of every module and parameter of `tree`.
Candidates FindCandidates(const Plan& plan, const ModuleTree& tree);

// Returns the indices of the rules whose pattern matches this path of a module or parameter, ascending. Rules with a
// bad pattern are left out.
std::vector<int32_t> RulesMatching(const Plan& plan, std::string_view path);

// Returns the rule of `candidates` that applies: the first one of the lowest level. `candidates` must not be empty.
int32_t WinnerOf(const Plan& plan, const std::vector<int32_t>& candidates);

}  // namespace moonshard
