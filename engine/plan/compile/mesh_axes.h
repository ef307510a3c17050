// MeshAxes: findings about mesh axes that a plan does not use.
// Part of compile.h.
#pragma once

#include "engine/core/base/diagnostic.h"
#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {

// Reports each axis of more than one rank that no layout and no section of the plan uses: kUnusedAxis (a warning), or
// kNotSupported for pp and cp. A plan can declare layouts on pp and cp (`on`); without such layouts the axis has no
// use: there is no pipeline parallelism, and no context parallelism without shards of the sequence on cp.
void CheckAxes(const CompiledPlan& plan, Diagnostics& diagnostics);

// Returns the warnings of CheckAxes about dp_shard and dp_replicate: the plan does not reduce gradients over ranks that
// receive different rows of the batch. apply/ reports these warnings as errors unless
// ApplyOptions::independent_replicas is set.
Diagnostics IndependentReplicas(const CompiledPlan& plan);

}  // namespace moonshard
