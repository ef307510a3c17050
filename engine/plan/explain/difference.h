// Difference: what one compiled plan does otherwise than another, on the same model: for who edits a plan and wants to see
// what an edit did (the REPL's :reload, :try, :diff).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {

struct PlanDifference {
  static constexpr int64_t kAbsent = -1;  // the plan has no such rule

  // A rule that claims another number of modules, or that one of the two does not have.
  struct RuleChange {
    std::string pattern;
    std::string source;  // in the second plan; in the first where it is gone
    int64_t before = kAbsent;
    int64_t after = kAbsent;
  };
  // One thing that happens to a module. `what`: "style", a parameter's name, "input", "output 1", "added late", "lookup",
  // "route", "fsdp unit", "recomputed", or "module" where one of the models lacks it.
  struct Part {
    std::string what;
    std::string before;  // "" where there is none
    std::string after;
    bool operator==(const Part&) const = default;
  };
  // Modules that are alike up to numbers and change alike.
  struct ModuleChange {
    std::string path;  // folded: "model.layers.{0..31}.mlp"
    int64_t modules = 0;
    std::vector<Part> parts;  // what differs
  };

  std::vector<RuleChange> rules;      // in the second plan's order, then those that are gone
  std::vector<ModuleChange> modules;  // in tree order
  bool empty() const { return rules.empty() && modules.empty(); }
};

// Equal rules are those with the same pattern; of several with one, the last of each plan belong together, for those of an
// extended plan come last.
PlanDifference Compare(const CompiledPlan& before, const CompiledPlan& after);

}  // namespace moonshard
