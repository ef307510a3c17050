// ClipGradNorm: the total norm of all gradients with every element counted once, whatever is sharded, replicated or
// replicated in part, and clipping by it.
#pragma once

#include "engine/runtime/apply/applied_plan.h"

namespace moonshard {

// The p-norm over all parameters' gradients, in float64; p > 0, or infinity for the largest absolute value. Collective
// over the axes that the plan uses. 0 where no parameter has a gradient. Equal on every rank. A gradient that is not
// finite makes it NaN or infinite.
double GradNorm(const AppliedPlan& model, double p = 2);

// Scales every gradient by max_norm / (norm + 1e-6) where that is below 1 (the rule of torch's clip_grad_norm_), and
// returns the norm before. It scales also where the norm is not finite: NaN makes every gradient NaN, infinity makes
// the finite ones 0 and the others NaN. Skip the step, or compute GradNorm first.
double ClipGradNorm(AppliedPlan& model, double max_norm, double p = 2);

}  // namespace moonshard
