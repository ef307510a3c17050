// The data-parallel part of compile: what `fsdp` and `ddp` sections make of placements, and fsdp's units; those of a
// plan that uses parameters in another dtype too, which are gathered from one rank: themselves.
#pragma once

#include "engine/core/base/diagnostic.h"
#include "engine/plan/compile/compiled_plan.h"
#include "engine/plan/match/match.h"

namespace moonshard {

// With `fsdp`: every parameter becomes shard(0) on dp_shard, on top of what tp makes of it (a single number stays
// replicated and is shared, and so is what the section ignores), and shared on dp_replicate; the units and what they
// have in common are filled in. With `ddp`: shared on both axes, so that gradients are summed. Axes of one rank are
// left alone. To be called when all other placements are final.
//
// Errors: kNotHookable (a unit, or the root, whose calls cannot be intercepted), kTieConflict (a tensor of two units),
// kNotSupported (a layout on a data-parallel axis besides the section; a fused weight whose heads several ranks hold,
// in fsdp).
void CompileDataParallel(const MatchedPlan& matched, CompiledPlan& plan, Diagnostics& diagnostics);

// The placement of what a unit gathers: without the sharding over dp_shard.
Placement Gathered(Placement placement);

}  // namespace moonshard
