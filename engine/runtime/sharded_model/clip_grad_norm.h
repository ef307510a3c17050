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

// The same without a wait of the host for the device: a read of the norm is left to the caller, who can do it when the
// device has come to it.
struct DeviceNorm {
  at::Tensor norm;  // a float64 scalar on the mesh's device: what GradNorm returns
  // [model.parameters().size()], float64, on the mesh's device: the p-norm of what this rank counts of the gradient of
  // each parameter, 0 where it counts nothing. Every element of every gradient is counted by one rank of the combined
  // axes, so a gradient that is not finite shows on some rank.
  at::Tensor of_parameters;
};

// Whether all gradients are on the mesh's device, as the two functions below require. Gradients of offloaded shards are
// not.
bool GradientsOnDevice(const AppliedPlan& model);
// GradNorm and ClipGradNorm. Clipping multiplies every gradient also by a factor of 1, which changes no bit; a gradient
// in bfloat16 is multiplied by the factor in bfloat16.
DeviceNorm GradNormOnDevice(const AppliedPlan& model, double p = 2);
DeviceNorm ClipGradNormOnDevice(AppliedPlan& model, double max_norm, double p = 2);

}  // namespace moonshard
