// The plan by structure: what `moonshard suggest --sure` writes for a model (dsl/planning/suggest), evaluated. Part of
// step 4 of the choice (choose_plan.h).
// Stage before: dsl/planning/suggest. Stage after: match.
#pragma once

#include "dsl/language/bind/plan_inputs.h"
#include "engine/core/base/result.h"
#include "engine/plan/plan/plan.h"

namespace moonshard {

struct StructurePlan {
  Result<Plan> plan;   // under the options of `inputs`; its places are in kSuggestedFile
  int64_t blocks = 0;  // that are sure, norms among them
  int64_t left = 0;    // that another reading is possible of, or none is known: replicated, or by rows
};

// `inputs.model` is not null. What is suggested depends on the config and the modules, not on the mesh and the options.
StructurePlan ReadStructure(const PlanInputs& inputs);

// Elements of the parameters that the plan shards (PlanTotals::sharded_params); -1 where it has errors on the model and
// the mesh of `inputs`.
int64_t ShardedElements(const Plan& plan, const PlanInputs& inputs);

}  // namespace moonshard
