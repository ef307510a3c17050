// Preflight: what is checked of a compiled plan and a live model before the ranks communicate.
// Stage before: compile, live_tree.h. Stage after: applied_plan.h.
#pragma once

#include "engine/core/base/diagnostic.h"
#include "engine/plan/compile/compiled_plan.h"
#include "engine/runtime/apply/live_tree.h"

namespace moonshard {

// The same on every rank. kNotHookable: a parameter that is sharded over tp in a module whose calls cannot be intercepted,
// and no module around it redistributes anything. kNotSupported: layouts on axes that cannot be applied, a style of which something is missing, a
// model that has a plan already.
Diagnostics CheckApplicable(const LiveTree& live, const CompiledPlan& plan);

}  // namespace moonshard
