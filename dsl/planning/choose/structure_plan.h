// StructurePlan: writes and evaluates the plan by structure, the plan that `moonshard suggest --sure` writes for a
// model (dsl/planning/suggest). Part of step 4 of the choice (choose_plan.h).
// Stage before: dsl/planning/suggest. Stage after: match.
#pragma once

#include "dsl/language/bind/plan_inputs.h"
#include "engine/core/base/result.h"
#include "engine/plan/plan/plan.h"

namespace moonshard {

struct StructurePlan {
  Result<Plan> plan;   // evaluated with the options of `inputs`; its source locations are in kSuggestedFile
  int64_t blocks = 0;  // identified blocks, including norms
  int64_t left = 0;    // blocks without a certain reading: replicated, or sharded with gathered outputs (rows.h)
  // The plan has no option sequence_parallel, which `inputs` have, and shards something without it; the error in `plan`
  // has the reason.
  bool no_sequence = false;
};

// `inputs.model` must not be null. The text of the plan depends on the config and the modules, not on the mesh and the
// options.
StructurePlan ReadStructure(const PlanInputs& inputs);

// Returns the number of elements in sharded parameters (PlanTotals::sharded_params), or -1 if the plan has errors on
// the model and the mesh of `inputs`.
int64_t ShardedElements(const Plan& plan, const PlanInputs& inputs);

}  // namespace moonshard
