// Boundary steps: makes the Boundary of a module from its ModuleSteps (engine/plan/compile/module_steps.h lists the
// steps and explains their order). Each step becomes one BoundaryStep object; a step before forward and the step after
// forward that ends it (gather and reshard of a unit) share one object. The compiled plan decides which steps run; this
// code adds only the objects that exist at run time: this rank's experts, live tensors, process groups.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/plan/compile/compiled_plan.h"
#include "engine/runtime/apply/call_guards.h"
#include "engine/runtime/collective/axis_group.h"
#include "engine/runtime/fsdp/unit.h"
#include "engine/runtime/fsdp/unit_order.h"
#include "engine/runtime/nn/boundary.h"
#include "engine/runtime/random/random_streams.h"
#include "engine/runtime/redistribute/exchanges_ahead.h"
#include "engine/runtime/redistribute/expert_loads.h"
#include "engine/runtime/redistribute/gradient_sum.h"
#include "engine/runtime/redistribute/redistribute.h"

namespace moonshard {

using PlanGroups = std::map<PlannedGroup, std::shared_ptr<AxisGroup>>;

// Returns the redistributions of a module's steps in order: first the redistributions of ModuleSteps::enter, then the
// redistributions of ModuleSteps::leave. A redistribution with errors is left out, and its errors are appended to
// `diagnostics`.
std::vector<TensorRedistribution> MakeRedistributions(const CompiledPlan& plan, size_t module, const PlanGroups& groups,
                                                      Diagnostics& diagnostics);

// The objects that the boundaries of one model share. A pointer is null if the model does not need the object.
struct BoundaryParts {
  const CompiledPlan& plan;
  int64_t rank = 0;
  PlanGroups groups;
  std::shared_ptr<GradientSum> gradient_sum;
  std::shared_ptr<DeferredValues> values;
  std::shared_ptr<const ShardGuard> guard;
  std::shared_ptr<RandomStreams> streams;
  std::vector<std::shared_ptr<Unit>> units;  // in the order of plan.units
  std::shared_ptr<UnitOrder> order;          // the order in which units are called
  std::shared_ptr<const CallObservers> observers;
  std::set<int64_t> sharded_dims;  // CompiledPlan::sharded_dims
  int64_t check_inputs = 0;        // ApplyOptions::check_inputs
  std::shared_ptr<ExpertLoads> loads;
  std::shared_ptr<ExchangesAhead> exchanges;  // gets those of the boundaries that are made
  std::shared_ptr<const bool> trains;         // whether calls may train: AppliedPlan::SetActiveAdapter
  bool own_inputs = false;                    // HasOwnInputs(plan)
};

// A parameter that a module leaves out of its forward (Hookable::HoldBack). Its last dim runs along dim `dim` of the
// first result, counted from the end (nn::AddsAlong).
struct Late {
  at::Tensor tensor;
  int64_t dim = -1;
};

// Returns the boundary of a module that has steps or a guard. `redistributions`: the result of MakeRedistributions.
// `late`: the boundary adds them to the first result. A call throws PlanError kStyleDoesNotFit where a shard of the
// result has other sizes along a late parameter than this rank's shard of the parameter. `guard`: a step before those
// of the plan (gradient_guard.h); may be null.
std::shared_ptr<Boundary> MakeBoundary(const BoundaryParts& parts, size_t module,
                                       std::vector<TensorRedistribution> redistributions, std::vector<Late> late,
                                       std::shared_ptr<BoundaryStep> guard = nullptr);

}  // namespace moonshard
