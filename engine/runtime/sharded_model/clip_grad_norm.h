// ClipGradNorm: the total norm of all gradients, and clipping by it. Every element of the full gradients is counted
// once, for sharded and replicated parameters and for heads that only some ranks share.
#pragma once

#include "engine/runtime/apply/applied_plan.h"

namespace moonshard {

// Returns the p-norm over the gradients of all parameters, in float64; p > 0, or infinity for the largest absolute
// value. Returns 0 if no parameter has a gradient, and NaN or infinity if a gradient is not finite. Every rank gets the
// same number. Collective over the axes that the plan uses.
double GradNorm(const AppliedPlan& model, double p = 2);

// Scales every gradient by max_norm / (norm + 1e-6) if that factor is below 1 (the rule of torch's clip_grad_norm_),
// and returns the norm before scaling. It also scales if the norm is not finite: NaN makes every gradient NaN; infinity
// makes the finite elements 0 and the infinite ones NaN. To avoid this, skip the step if GradNorm is not finite.
double ClipGradNorm(AppliedPlan& model, double max_norm, double p = 2);

}  // namespace moonshard
