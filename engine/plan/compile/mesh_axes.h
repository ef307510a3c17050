// Mesh axes that a plan does not use.
// Part of compile.h.
#pragma once

#include "engine/core/base/diagnostic.h"
#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {

// kUnusedAxis, a warning: nothing in the plan is on an axis above 1. kNotSupported for pp and cp: there are layouts on
// them (`on`), but no pipeline or context parallelism that could use the axis without.
void CheckAxes(const CompiledPlan& plan, Diagnostics& diagnostics);

// The part of these warnings that is about training: ranks of dp_shard or dp_replicate, which see different rows, under
// a plan that reduces no gradients over them. apply/ makes errors of them (ApplyOptions::independent_replicas).
Diagnostics IndependentReplicas(const CompiledPlan& plan);

}  // namespace moonshard
