// Hugging Face plans on the command line: `--plan hf:FILE[#KEY]` and `moonshard import`.
#pragma once

#include <string>

#include "dsl/bind/plan_inputs.h"
#include "dsl/cli/options.h"
#include "engine/base/result.h"
#include "engine/plan/plan.h"

namespace moonshard {

// Whether a --plan names one: "hf:FILE".
bool IsHuggingFaceName(const std::string& plan);

// The plan that "hf:FILE" or "hf:FILE#KEY" names, as `import` would write it, for the model in `inputs`; its rules point to
// the lines of FILE. Where the base model stands is read off the model's names unless the option `base` is given.
// Errors: those of reading and choosing (dsl/hugging_face/plan_file.h), of the model's base and of evaluating.
Result<Plan> LoadHuggingFacePlan(const std::string& plan, const PlanInputs& inputs);

// The text of a plan file. It has been evaluated once: a style that nobody defined is an error at FILE's line.
Result<std::string> ImportHuggingFacePlan(const ImportVerb& verb);

}  // namespace moonshard
