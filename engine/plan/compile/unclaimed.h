// Parameters that no rule claims.
// Part of compile.h.
#pragma once

#include "engine/core/base/diagnostic.h"
#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {

// kUnclaimedParameter: a warning, unless their neighbours are sharded. Between sharded neighbours a replicated parameter is
// used on shards, and whether its gradient needs a sum only the author can say. A projection among them is told which
// style its siblings wait for. Warnings that ask for the same are one, which names the first few modules.
void CheckUnclaimed(const CompiledPlan& plan, Diagnostics& diagnostics);

}  // namespace moonshard
