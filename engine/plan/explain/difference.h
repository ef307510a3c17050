// Difference: the differences between two compiled plans of the same model, to show the effect of an edit (the REPL's
// :reload, :try, :diff).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {

struct PlanDifference {
  static constexpr int64_t kAbsent = -1;  // the plan has no such rule

  // A rule that claims different numbers of modules in the two plans, or that only one of the plans has.
  struct RuleChange {
    std::string pattern;
    std::string source;  // position in the second plan, or in the first plan if only the first plan has the rule
    int64_t before = kAbsent;
    int64_t after = kAbsent;
  };
  // One property of a module. `what`: "style", a parameter's name, "input", "output 1", "added late", "lookup",
  // "route", "exchange", "ring", "fsdp unit", "recomputed", "adapter NAME" (its settings), "active adapter" (its name,
  // of the root), or "module" if only one of the models has the module.
  struct Part {
    std::string what;
    std::string before;  // "": none
    std::string after;   // "": none
    bool operator==(const Part&) const = default;
  };
  // Modules whose paths differ in numbers only and that change in the same way.
  struct ModuleChange {
    std::string path;  // folded: "model.layers.{0..31}.mlp"
    int64_t modules = 0;
    std::vector<Part> parts;  // the properties that differ
  };

  std::vector<RuleChange> rules;      // in the second plan's order, then rules that only the first plan has
  std::vector<ModuleChange> modules;  // in tree order
  bool empty() const { return rules.empty() && modules.empty(); }
};

// Returns the differences from `before` to `after`. Rules with the same pattern are compared with each other. If
// several rules of a plan have the same pattern, they are paired from the end, since the rules of an extended plan come
// last.
PlanDifference Compare(const CompiledPlan& before, const CompiledPlan& after);

}  // namespace moonshard
