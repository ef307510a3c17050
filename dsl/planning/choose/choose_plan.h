// ChoosePlan: the plan of a model, the first of:
//
//   1. the plan that was named: a file, a shipped plan, or a Hugging Face plan (hf:FILE)
//   2. the plan that plans/index.lua has for the architecture, by its qualified and then by its bare name
//   3. the checkpoint's own: a Hugging Face plan in its config.json (hugging_face_plan.h)
//   4. plans/default.lua, where the model's modules have the usual names, or what `moonshard suggest --sure` writes,
//      where that shards more of the parameters: blocks that are recognized by their structure at any path
//      (structure_plan.h)
//
// For 3 and 4 a finding reports the chosen plan and why the earlier steps had none (kPlanFallback). A plan of step 2
// that rejects the model or an option is an error: another plan would hide its message. Of the two plans of step 4 one
// that takes the model, the mesh and the options goes before one that does not.
// Stage before: config.json and the module tree. Stage after: match.
#pragma once

#include <string>

#include "dsl/language/bind/plan_inputs.h"
#include "engine/core/base/result.h"
#include "engine/plan/plan/plan.h"

namespace moonshard {

// The evaluated plan; Plan::chosen is the step that chose it, unless it was named. `wanted` is a name, a file or
// hf:FILE, empty for none.
// Errors: as LoadPlanFile; kPlanNotFound, with a suggested fix, if no step has a plan.
Result<Plan> ChoosePlan(const std::string& wanted, const PlanInputs& inputs);

// The name of the built-in plan for a model, by the architectures in its config.json: step 2 alone.
// Errors: kPlanNotFound, with the architectures that have one.
Result<std::string> SelectPlan(const JsonValue& config);

}  // namespace moonshard
