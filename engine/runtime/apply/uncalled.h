// Uncalled: findings after a step about planned modules that were never called.
// Stage before: boundary_steps.h around their calls. Stage after: the host (AppliedPlan::Findings).
#pragma once

#include "engine/core/base/diagnostic.h"
#include "engine/plan/compile/compiled_plan.h"
#include "engine/runtime/apply/live_tree.h"

namespace moonshard {

// kUnusedHook for each, or kBypassedHook where a parameter of it got a gradient all the same.
Diagnostics FindUncalled(const CompiledPlan& plan, const LiveTree& live);

}  // namespace moonshard
