// ChoosePlan: chooses and evaluates the plan of a model. The first of these applies:
//
//   1. the plan that was named: a file, a shipped plan, or a Hugging Face plan (hf:FILE)
//   2. the plan that plans/index.lua has for the architecture; the architecture with its model type
//      ("nemotron-nas.DeciLMForCausalLM") is looked up before the architecture alone
//   3. the checkpoint's own Hugging Face plan: base_model_tp_plan in its config.json (hugging_face_plan.h)
//   4. plans/default.lua, which recognizes modules by their usual names, or the plan that `moonshard suggest --sure`
//      writes, which recognizes blocks by their structure at any path (structure_plan.h): the plan that shards more of
//      the parameters, and plans/default.lua if both shard the same number
//
// A plan of step 3 or 4 is reported as a finding (kPlanFallback), unless plans/default.lua is chosen for tp=1, where
// nothing is sharded. A plan of step 2 that rejects the model or an option is an error: a fallback to another plan
// would hide why the plan was rejected. In step 4 a plan that accepts the model, the mesh and the options is preferred
// to a plan that does not.
// Stage before: config.json and the module tree. Stage after: match.
#pragma once

#include <string>

#include "dsl/language/bind/plan_inputs.h"
#include "engine/core/base/result.h"
#include "engine/plan/plan/plan.h"

namespace moonshard {

// Returns the evaluated plan. Plan::chosen states which step chose the plan, and is empty for a plan that was named.
// `wanted`: a name, a file or hf:FILE; "": the plan is chosen.
// Errors: those of LoadPlanFile; kPlanNotFound, with a suggested fix, if no step has a plan.
Result<Plan> ChoosePlan(const std::string& wanted, const PlanInputs& inputs);

// Returns the name of the shipped plan that plans/index.lua has for the architectures in config.json: step 2 alone.
// Errors: kPlanNotFound, with the list of the architectures that have a plan.
Result<std::string> SelectPlan(const JsonValue& config);

}  // namespace moonshard
