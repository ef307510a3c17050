// The keys of the stdlib's colwise and rowwise, by hand: for tests of directories that know no Lua.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/plan/plan/plan.h"

namespace moonshard::test {

// `residual`: the layout of the hidden states between blocks.
inline Style ColwiseStyle(const Placement& residual = Layout::Replicate()) {
  Style style;
  style.name = "colwise";
  style.params = {{"weight", Layout::Shard(0)}, {"bias", Layout::Shard(0)}};
  style.inputs = {Redistribution{residual, Layout::Shared()}};
  style.outputs = {Redistribution{Layout::Shard(-1), Layout::Shard(-1)}};
  return style;
}

inline Style RowwiseStyle(const Placement& residual = Layout::Replicate()) {
  Style style;
  style.name = "rowwise";
  style.params = {{"weight", Layout::Shard(1)}};
  style.after = {"bias"};
  style.inputs = {Redistribution{Layout::Shard(-1), Layout::Shard(-1)}};
  style.outputs = {Redistribution{Layout::Partial(), residual}};
  return style;
}

// A plan of one rule for each pattern.
inline Plan PlanOfRules(const std::string& name, const std::vector<std::pair<std::string, Style>>& rules) {
  Plan plan;
  plan.name = name;
  for (const auto& [pattern, style] : rules) {
    Rule rule;
    rule.pattern = pattern;
    rule.style = style;
    plan.rules.push_back(std::move(rule));
  }
  return plan;
}

}  // namespace moonshard::test
