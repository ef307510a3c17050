// HuggingFacePlan: loads Hugging Face tensor-parallel plans as plans of moonshard: from a file (`--plan
// hf:FILE[#KEY]`), or from the checkpoint (base_model_tp_plan in its config.json, step 3 of choose_plan.h).
// Stage before: dsl/planning/hugging_face, which translates a Hugging Face plan to the text of a plan file. Stage
// after: match.
#pragma once

#include <optional>
#include <string>

#include "dsl/language/bind/plan_inputs.h"
#include "dsl/planning/hugging_face/lua_text.h"
#include "dsl/planning/hugging_face/plan_file.h"
#include "engine/core/base/result.h"
#include "engine/plan/plan/plan.h"

namespace moonshard {

// Whether the value of --plan names a Hugging Face plan, as in "hf:FILE".
bool IsHuggingFaceName(const std::string& plan);

// Returns the plan that "hf:FILE" or "hf:FILE#KEY" names, as `import` would write it, evaluated for the model in
// `inputs`. Its rules refer to lines of FILE. The path of the base model is derived from the module names
// (FindBasePath) unless the option `base` is given; it is "model." if `inputs` has no model. Errors: those of
// ReadHuggingFaceFile, ChooseHuggingFacePlan and FindBasePath (dsl/planning/hugging_face/plan_file.h), and those of the
// evaluation.
Result<Plan> LoadHuggingFacePlan(const std::string& plan, const PlanInputs& inputs);

// Returns the checkpoint's own plan, evaluated; nullopt if config.json has no base_model_tp_plan. Errors: as for
// LoadHuggingFacePlan.
Result<std::optional<Plan>> PlanOfCheckpoint(const PlanInputs& inputs);

// Reads all plans of a file. Errors: kFileNotFound, kFileUnreadable and those of ReadHuggingFacePlans.
Result<HuggingFaceFile> ReadHuggingFaceFile(const std::string& path);
// Evaluates the text of a plan. Diagnostics and rules refer to the file that the text was made from; `name` is the name
// of that file.
Result<Plan> EvaluateHuggingFacePlan(const LuaPlanText& text, const std::string& name, const PlanInputs& inputs);

}  // namespace moonshard
