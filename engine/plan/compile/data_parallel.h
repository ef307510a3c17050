// DataParallel: the data-parallel part of compile: adds the layouts of an `fsdp` or `ddp` section to the placements,
// and makes the units. A plan without fsdp also has units if it uses parameters in another dtype than their stored
// dtype; such a unit only casts.
#pragma once

#include "engine/core/base/diagnostic.h"
#include "engine/plan/compile/compiled_plan.h"
#include "engine/plan/match/match.h"

namespace moonshard {

// With `fsdp`: every parameter becomes shard(0) on dp_shard, applied to its tp shard (tp shards first), and shared on
// dp_replicate and ep. Under context parallelism it becomes shard(0) on cp too: cp shards what tp left, and dp_shard
// what cp left, but a unit is gathered and its gradients are reduce-scattered over the ranks of both axes at once. A
// parameter that a rule shards on ep keeps that shard: an expert, with the tokens of all ranks of ep
// (expert_parallel.h). Parameters without dims (single numbers) and parameters of modules that the section ignores
// become shared on the data-parallel axes. Fills in plan.units and plan.unit_settings. With `ddp`: every parameter
// becomes shared on the data-parallel axes, so that its gradient is summed. Axes of one rank are not changed. Call it
// when all other placements are final.
//
// Errors: kNotHookable (a unit, or the root, whose calls cannot be intercepted), kTieConflict (a tensor of two units),
// kStyleDoesNotFit (a number of ranks to reshard over that does not divide the ranks of a unit), kNotSupported (a
// layout on a data-parallel axis beside the section; in fsdp, a fused weight with a part of fewer heads than ranks).
void CompileDataParallel(const MatchedPlan& matched, CompiledPlan& plan, Diagnostics& diagnostics);

// Returns the placement of a parameter that its unit has gathered: `placement` without the sharding over dp_shard and
// cp.
Placement Gathered(Placement placement);

}  // namespace moonshard
