// Apply checks: compare a compiled plan with a live model, before the first collective and after a step.
// Stage before: compile, live_tree.h. Stage after: applied_plan.h.
#pragma once

#include "engine/core/base/diagnostic.h"
#include "engine/plan/compile/compiled_plan.h"
#include "engine/runtime/apply/live_tree.h"

namespace moonshard {

// Checks the plan before it is applied. Returns the same errors on every rank. kNotHookable: a parameter is sharded
// over tp, the calls of its module cannot be intercepted, and no module around it or inside it redistributes
// activations. kNotSupported: a parameter layout on an axis other than tp without fsdp or ddp, a style that the engine
// cannot fully run yet, recomputation of a module whose calls cannot be repeated (Hookable::CanRunThrough), a model to
// which a plan was applied before.
Diagnostics CheckApplicable(const LiveTree& live, const CompiledPlan& plan);

// Call it after a step. Returns one finding for each planned module that was never called: kUnusedHook, or
// kBypassedHook if a parameter of the module nevertheless has a gradient (AppliedPlan::Findings).
Diagnostics FindUncalled(const CompiledPlan& plan, const LiveTree& live);

}  // namespace moonshard
