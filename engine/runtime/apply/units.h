// Units: makes the fsdp units and the gradient buckets of a compiled plan from the parameters of a live model.
// Stage before: parameters hold this rank's shards. Stage after: fsdp/unit_step.h, around the modules' calls.
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

// Returns " (line 12)" with the line of the plan's fsdp or ddp section, or "" if there is no section or no line. For
// labels of collectives in errors.
std::string LineOfSection(const CompiledPlan& plan);

// Makes `sum` reduce the gradients in the plan's buckets (plan.buckets). Call it after all calls of GradientSum::Add.
// If DeferInit or offload gave the parameters of one bucket different dtypes or devices, the bucket is split into one
// bucket for each dtype and device. `groups`: all process groups of the plan.
void SumInBuckets(const CompiledPlan& plan, const std::vector<LiveParameter>& parameters, const PlanGroups& groups,
                  GradientSum& sum);

// Makes one unit for each of plan.units, and the order of their calls. The units pass the gradients of their parameters
// to `sum` by AccumulateGrad. Call MakeUnits before any GradientSum::Add, because MakeUnits calls
// GradientSum::SetManual, which must come first.
struct PlannedUnits {
  std::vector<std::shared_ptr<Unit>> units;
  std::shared_ptr<UnitOrder> order;
  std::set<ParamRef> params;  // parameters that belong to a unit
};
PlannedUnits MakeUnits(const CompiledPlan& plan, const std::vector<LiveParameter>& parameters, int64_t rank,
                       const PlanGroups& groups, const std::shared_ptr<BackwardEnd>& end,
                       const std::shared_ptr<GradientSum>& sum);

}  // namespace moonshard
