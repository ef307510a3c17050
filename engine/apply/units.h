// The units of a compiled plan over the parameters of a live model.
// Stage before: parameters hold this rank's pieces. Stage after: fsdp/unit_boundary.h around the modules' calls.
#pragma once

#include <memory>
#include <vector>

#include "engine/apply/applied_plan.h"
#include "engine/fsdp/unit.h"

namespace moonshard {

// What a rank's gradient is multiplied by on the way into a data-parallel mean; 1 for a sum.
double MeanScale(const CompiledPlan& plan);

// One unit for each of plan.units. Their parameters' gradients come to `sum` from the units: to be called before anything
// is added to it.
std::vector<std::shared_ptr<Unit>> MakeUnits(const CompiledPlan& plan, const std::vector<LiveParameter>& parameters,
                                             const DeviceMesh& mesh, const std::shared_ptr<AxisGroup>& group,
                                             const std::shared_ptr<BackwardEnd>& end,
                                             const std::shared_ptr<GradientSum>& sum);

}  // namespace moonshard
