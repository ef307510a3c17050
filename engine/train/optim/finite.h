// Finite: finds the first parameter or gradient that has NaN or an infinity. The search is for a step whose loss or
// gradient norm is not finite: it reads every element and is too slow for every step.
// Stage before: clip_grad_norm.h, which returns a norm that is not finite.
#pragma once

#include <string>

#include "engine/runtime/apply/applied_plan.h"
#include "engine/runtime/collective/world.h"

namespace moonshard {

struct NonFinite {
  std::string path;           // of the first such parameter in the order of paths; "": all values are finite
  bool in_parameter = false;  // true: the parameter itself; false: its gradient
};

// Returns the same result on every rank; collective over `world`. Parameters are checked before gradients, because a
// parameter that is not finite causes gradients that are not finite.
NonFinite FindNonFinite(const AppliedPlan& model, const World& world);

// The same when the gradients of the step are gone: `norms`, on the CPU, is DeviceNorm::of_parameters of that step. The
// parameters are checked as they are now: a later step may have changed them.
NonFinite FindNonFinite(const AppliedPlan& model, const World& world, const at::Tensor& norms);

}  // namespace moonshard
