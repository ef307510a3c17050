// Boundary steps: makes the boundary of a module from its steps: one object for each, in their order
// (engine/plan/compile/module_steps.h has which and why). Decides nothing: what only a run knows (this rank's experts,
// live tensors, process groups) is looked up.
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
#include "engine/runtime/redistribute/gradient_sum.h"
#include "engine/runtime/redistribute/redistribute.h"

namespace moonshard {

using PlanGroups = std::map<PlannedGroup, std::shared_ptr<AxisGroup>>;

// The redistributions of a module's steps, those of `enter` and then those of `leave`, in order. What is wrong goes
// to `diagnostics`.
std::vector<TensorRedistribution> MakeRedistributions(const CompiledPlan& plan, size_t module, const PlanGroups& groups,
                                                      Diagnostics& diagnostics);

// What the boundaries of a model share. Null where the model has none.
struct BoundaryParts {
  const CompiledPlan& plan;
  int64_t rank = 0;
  PlanGroups groups;
  std::shared_ptr<GradientSum> gradient_sum;
  std::shared_ptr<DeferredValues> values;
  std::shared_ptr<const ShardGuard> guard;
  std::shared_ptr<RandomStreams> streams;
  std::vector<std::shared_ptr<Unit>> units;  // as plan.units
  std::shared_ptr<UnitOrder> order;          // of the units
  std::shared_ptr<const CallObservers> observers;
  std::set<int64_t> sharded_dims;  // of the plan
  int64_t check_inputs = 0;        // ApplyOptions
};

// The boundary of a module that has steps; of another one too, for observers. `late`: the parameters that the module
// holds back.
std::shared_ptr<Boundary> MakeBoundary(const BoundaryParts& parts, size_t module,
                                       std::vector<TensorRedistribution> redistributions, std::vector<at::Tensor> late);

}  // namespace moonshard
