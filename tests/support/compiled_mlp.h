// A compiled plan small enough to check by hand: gate and up colwise, down rowwise.
#pragma once

#include <memory>
#include <string>

#include "engine/plan/resolve/resolve_plan.h"
#include "tests/support/tree_text.h"

namespace moonshard::test {

inline MeshShape Mesh(const std::string& text) { return MeshShape::Parse(text).ValueOrThrow(); }

inline Rule MakeRule(std::string pattern, std::string name, Layout weight, Redistribution input, Redistribution output,
                     int line) {
  Rule rule;
  rule.pattern = std::move(pattern);
  rule.style.name = std::move(name);
  rule.style.params["weight"] = Placement(std::move(weight));
  rule.style.inputs.emplace_back(std::move(input));
  rule.style.outputs.emplace_back(std::move(output));
  rule.source = {"p.lua", line, 0, 0, ""};
  return rule;
}

inline CompiledPlan CompileMlp(const std::string& mesh, int64_t features = 10) {
  const std::string wide = std::to_string(features);
  const auto tree = std::make_shared<const ModuleTree>(
      TreeFromText("mlp Mlp\nmlp.gate Linear weight:float32[" + wide + ", 4]\nmlp.up Linear weight:float32[" + wide +
                   ", 4]\nmlp.down Linear weight:float32[4, " + wide + "]\n"));
  const Placement replicate = Layout::Replicate();
  const Placement last = Layout::Shard(-1);
  auto plan = std::make_shared<Plan>();
  plan->name = "mlp";
  plan->rules.push_back(MakeRule("mlp.{gate,up}", "colwise", Layout::Shard(0), {replicate, Placement(Layout::Shared())},
                                 {last, last}, 1));
  plan->rules.push_back(
      MakeRule("mlp.down", "rowwise", Layout::Shard(1), {last, last}, {Placement(Layout::Partial()), replicate}, 2));
  return ResolvePlan(plan, tree, Mesh(mesh)).ValueOrThrow();
}

}  // namespace moonshard::test
