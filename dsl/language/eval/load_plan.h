// LoadPlan: Lua text + config + mesh + options -> Plan (engine/plan/plan/plan.h), in a sandbox. The same inputs give
// the same plan in every process: the result does not depend on rank, clock, addresses or hash order. Stage after:
// match.
//
// The text is untrusted. It runs in a Lua state of its own with an allow list of names
// (dsl/language/sandbox/environment.h) and limits on steps, CPU time and memory (dsl/language/state/limits.h), and can
// read only files in its own directory. One evaluation reports all mistakes, in the order of evaluation: after a wrong
// call it continues with a value that causes no further errors (dsl/language/state/poison.h).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "dsl/language/bind/plan_inputs.h"
#include "engine/core/base/result.h"
#include "engine/plan/plan/plan.h"

namespace moonshard {

// Evaluates plan text. `name` appears in its diagnostics and rules ("my_plan.lua"). The text has no directory of its
// own: it can require stdlib modules, and extend plans of the search path and built-in plans. Errors: all of MS01xx.
Result<Plan> EvaluatePlan(std::string_view text, const std::string& name, const PlanInputs& inputs);

// Evaluates a plan file, when `plan` holds a slash or ends in ".lua"; else the plan of that name: NAME.lua in the
// search path or a built-in one ("llama" is plans/llama.lua). Errors: kPlanNotFound with the names there are,
// kFileNotFound, kFileUnreadable, and as EvaluatePlan.
Result<Plan> LoadPlanFile(const std::string& plan, const PlanInputs& inputs);

// Names of the built-in plans, sorted.
std::vector<std::string> BuiltInPlans();

// LoadPlanFile for C++ programs. Throws PlanError with all diagnostics.
Plan LoadPlan(const std::string& plan, const PlanInputs& inputs);

}  // namespace moonshard
