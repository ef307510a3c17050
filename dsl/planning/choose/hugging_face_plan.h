// Hugging Face plans as plans: of a file (`--plan hf:FILE[#KEY]`), and of the checkpoint itself (base_model_tp_plan in
// its config.json), which is step 3 of the choice (choose_plan.h).
// Stage before: dsl/planning/hugging_face, which makes plan text of them. Stage after: match.
#pragma once

#include <optional>
#include <string>

#include "dsl/language/bind/plan_inputs.h"
#include "dsl/planning/hugging_face/lua_text.h"
#include "dsl/planning/hugging_face/plan_file.h"
#include "engine/core/base/result.h"
#include "engine/plan/plan/plan.h"

namespace moonshard {

// Whether a --plan names one: "hf:FILE".
bool IsHuggingFaceName(const std::string& plan);

// The plan that "hf:FILE" or "hf:FILE#KEY" names, as `import` would write it, for the model in `inputs`; its rules
// refer to the lines of FILE. The path of the base model is derived from the module names unless the option `base` is
// given. Errors: those of reading and choosing (dsl/planning/hugging_face/plan_file.h), of the base path and of the
// evaluation.
Result<Plan> LoadHuggingFacePlan(const std::string& plan, const PlanInputs& inputs);

// The checkpoint's own plan; nothing where its config holds none. Errors: as above.
Result<std::optional<Plan>> PlanOfCheckpoint(const PlanInputs& inputs);

// The plans in a file. Errors: kFileNotFound, kFileUnreadable and those of ReadHuggingFacePlans.
Result<HuggingFaceFile> ReadHuggingFaceFile(const std::string& path);
// Evaluates plan text; diagnostics refer to the file that it was made from.
Result<Plan> EvaluateHuggingFacePlan(const LuaPlanText& text, const std::string& name, const PlanInputs& inputs);

}  // namespace moonshard
