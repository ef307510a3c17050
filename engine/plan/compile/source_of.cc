#include "engine/plan/compile/source_of.h"

namespace moonshard {

const SourceSpan& SourceOf(const CompiledPlan& plan, const ModuleSteps& steps) {
  static const SourceSpan kNowhere;
  if (steps.is_fallback) return plan.plan->fallback_source;
  return steps.rule < 0 ? kNowhere : plan.plan->rules[static_cast<size_t>(steps.rule)].source;
}

const SourceSpan& SourceOf(const CompiledPlan& plan, const ModuleSteps& steps, size_t param) {
  const int32_t rule = param < steps.param_rules.size() ? steps.param_rules[param] : -1;
  return rule < 0 ? SourceOf(plan, steps) : plan.plan->rules[static_cast<size_t>(rule)].source;
}

}  // namespace moonshard
