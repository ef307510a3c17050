// The plan that a checkpoint brings along: config.json of Hugging Face may hold base_model_tp_plan, a table of names of
// their styles by module pattern. This one function is where such a plan enters the choice (choose_plan.h, step 3).
#pragma once

#include <optional>

#include "dsl/bind/plan_inputs.h"
#include "engine/base/result.h"
#include "engine/plan/plan.h"

namespace moonshard {

// The checkpoint's own plan; nothing where its config holds none, and nothing with a warning (kPlanFallback) where it
// holds one, because the styles of Hugging Face plans are not read yet.
Result<std::optional<Plan>> PlanOfCheckpoint(const PlanInputs& inputs);

}  // namespace moonshard
