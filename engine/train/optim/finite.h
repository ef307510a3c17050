// Finite: the first parameter or gradient that holds NaN or an infinity. For the step whose loss or gradient norm is
// NaN or infinite: it reads every element, and is too slow for every step.
// Stage before: clip_grad_norm.h, which detects that there is one.
#pragma once

#include <string>

#include "engine/runtime/apply/applied_plan.h"
#include "engine/runtime/collective/world.h"

namespace moonshard {

struct NonFinite {
  std::string path;           // of the first such parameter in the order of paths; "" where there is none
  bool in_parameter = false;  // the parameter itself; else its gradient
};

// The same on every rank; collective over `world`. Parameters are checked before gradients: the gradients of a
// parameter that is not finite are not the cause.
NonFinite FindNonFinite(const AppliedPlan& model, const World& world);

}  // namespace moonshard
