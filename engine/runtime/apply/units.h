// Makes the fsdp units and the gradient buckets of a compiled plan from the parameters of a live model.
// Stage before: parameters hold this rank's shards. Stage after: fsdp/unit_step.h around the modules' calls.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/runtime/apply/applied_plan.h"
#include "engine/runtime/apply/boundary_steps.h"
#include "engine/runtime/fsdp/unit.h"
#include "engine/runtime/fsdp/unit_order.h"
#include "engine/runtime/redistribute/gradient_sum.h"

namespace moonshard {

// " (line 12)", of the plan's fsdp or ddp; "" without one. For the errors of their collectives.
std::string LineOfSection(const CompiledPlan& plan);

// Makes `sum` sum in the plan's gradient buckets (plan.buckets), after everything was added to it. Parameters whose
// dtype or device differs from the tree's (DeferInit) get buckets of their own. `groups`: the groups of all sums of the
// plan.
void SumInBuckets(const CompiledPlan& plan, const std::vector<LiveParameter>& parameters, const PlanGroups& groups,
                  GradientSum& sum);

// One unit for each of plan.units, and their order. The units pass their parameters' gradients to `sum`: call this
// before anything is added to `sum`.
struct PlannedUnits {
  std::vector<std::shared_ptr<Unit>> units;
  std::shared_ptr<UnitOrder> order;
  std::set<ParamRef> params;  // that a unit holds
};
PlannedUnits MakeUnits(const CompiledPlan& plan, const std::vector<LiveParameter>& parameters, int64_t rank,
                       const PlanGroups& groups, const std::shared_ptr<BackwardEnd>& end,
                       const std::shared_ptr<GradientSum>& sum);

}  // namespace moonshard
