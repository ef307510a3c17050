// GradientGuard: refuses calls after which a backward would compute a gradient that the plan does not reduce over tp: a
// Linear with a colwise weight whose input is declared `replicate`, a norm with a `replicate` weight on shards of the
// sequence. Such a forward is right, so that the plan is valid for inference and only warned about
// (plan/compile/checks.h); trained with it, each rank follows its own term of the gradient.
//
// A call is refused if a backward may follow: gradients are enabled, and the tensor whose gradient would not be reduced
// requires one (the argument, or the weight). Other calls run: under no_grad, or of a frozen module whose input needs
// no gradient. So do calls that are observed to examine the plan (CallObserver::examines).
// Stage before: compile (FindUnreducedGradient). Stage after: boundary_steps.h, which places the step first.
#pragma once

#include <cstddef>
#include <memory>

#include <ATen/core/Tensor.h>

#include "engine/plan/compile/compiled_plan.h"
#include "engine/runtime/apply/live_tree.h"
#include "engine/runtime/nn/boundary.h"

namespace moonshard {

// Returns the step for the calls of module `module`, or null if the plan reduces all of its gradients. `observers`: of
// the model. `trains`: false while calls run without gradients (AppliedPlan::SetActiveAdapter). Enter throws PlanError
// kStyleDoesNotFit for a call that is refused: on every rank, if they make the same call, and before any of its
// collectives.
std::shared_ptr<BoundaryStep> MakeGradientGuard(const CompiledPlan& plan, size_t module, const LiveTree& live,
                                                std::shared_ptr<const CallObservers> observers,
                                                std::shared_ptr<const bool> trains);

}  // namespace moonshard
