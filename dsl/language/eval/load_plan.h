// LoadPlan: evaluates Lua text with a config, a mesh and options to a Plan (engine/plan/plan/plan.h), in a sandbox. The
// same inputs give the same plan in every process: the result does not depend on rank, clock, addresses or hash order.
// Stage after: match.
//
// The text is untrusted. It runs in a Lua state of its own with an allow list of names
// (dsl/language/sandbox/environment.h) and limits on steps, CPU time and memory (dsl/language/state/limits.h), and can
// read only Lua files in its own directory and in the search path. One evaluation reports all mistakes, sorted by line
// within a file: after a wrong call the evaluation continues with a value that causes no further errors
// (dsl/language/state/poison.h).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "dsl/language/bind/plan_inputs.h"
#include "engine/core/base/result.h"
#include "engine/plan/plan/plan.h"

namespace moonshard {

// Evaluates plan text. `name` is the file in diagnostics and rules ("my_plan.lua"). The text has no directory of its
// own: the text can require only stdlib modules, and extend only plans of the search path and built-in plans. Errors:
// MS01xx; kFileUnreadable for a plan of the search path; with inputs.isolate, also the errors of EvaluateInChild.
Result<Plan> EvaluatePlan(std::string_view text, const std::string& name, const PlanInputs& inputs);

// Evaluates the plan file `plan` if `plan` contains a slash or ends in ".lua"; else the plan with the name `plan`:
// NAME.lua in the search path, or a built-in plan ("llama" is plans/llama.lua). Errors: kPlanNotFound with the nearest
// name or the available names, kFileNotFound, kFileUnreadable, and the errors of EvaluatePlan.
Result<Plan> LoadPlanFile(const std::string& plan, const PlanInputs& inputs);

// Returns the names of the built-in plans, sorted.
std::vector<std::string> BuiltInPlans();

// As LoadPlanFile, for C++ programs: returns the plan, or throws PlanError with all diagnostics.
Plan LoadPlan(const std::string& plan, const PlanInputs& inputs);

}  // namespace moonshard
