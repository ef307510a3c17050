// The units of a compiled plan over the parameters of a live model.
// Stage before: parameters hold this rank's shards. Stage after: fsdp/unit_boundary.h around the modules' calls.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/plan/compile/gradient_terms.h"
#include "engine/runtime/apply/applied_plan.h"
#include "engine/runtime/fsdp/unit.h"
#include "engine/runtime/fsdp/unit_order.h"
#include "engine/runtime/random/random_streams.h"
#include "engine/runtime/redistribute/gradient_sum.h"

namespace moonshard {

// What a rank's gradient is multiplied by on the way into a data-parallel mean; 1 for a sum.
double MeanScale(const CompiledPlan& plan);

// " (line 12)", of the plan's fsdp or ddp; "" without one. What errors of their collectives say.
std::string LineOfSection(const CompiledPlan& plan);

// Makes `sum` sum in the plan's gradient buckets (gradient_buckets.h), after everything was added to it. Parameters of
// another dtype or device than the tree says (DeferInit) go apart. `groups`: of every sum of the plan.
void SumInBuckets(const CompiledPlan& plan, const std::vector<LiveParameter>& parameters,
                  const std::map<GradientGroup, std::shared_ptr<AxisGroup>>& groups, GradientSum& sum);

// One unit for each of plan.units, and their order. Their parameters' gradients come to `sum` from the units: to be called
// before anything is added to it.
struct PlannedUnits {
  std::vector<std::shared_ptr<Unit>> units;
  std::shared_ptr<UnitOrder> order;
  std::set<ParamRef> params;  // that a unit holds
};
// Makes the groups that it needs besides: collective.
PlannedUnits MakeUnits(const CompiledPlan& plan, const std::vector<LiveParameter>& parameters, const DeviceMesh& mesh,
                       const std::shared_ptr<AxisGroup>& dp_shard, const CheckOptions& check,
                       const std::shared_ptr<CollectiveCounts>& counts, const std::shared_ptr<BackwardEnd>& end,
                       const std::shared_ptr<GradientSum>& sum);

// Recomputation around the boundaries of the plan's modules, which are indexed like the tree's modules; and around those
// whose results it keeps. Runs again draw from `streams`, which may be null, as the first run did.
void AddRecomputation(const CompiledPlan& plan, const std::shared_ptr<RandomStreams>& streams,
                      std::vector<std::shared_ptr<Boundary>>& boundaries);

// The casts of the plan around the boundaries of its modules, which are indexed like the tree's modules.
void AddCasts(const CompiledPlan& plan, std::vector<std::shared_ptr<Boundary>>& boundaries);

}  // namespace moonshard
