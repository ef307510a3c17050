// Parameters that no rule claims.
// Part of compile.h.
#pragma once

#include "engine/core/base/diagnostic.h"
#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {

// kUnclaimedParameter: a warning, unless their neighbours are sharded. Between sharded neighbours a replicated
// parameter is used on shards, and only the author knows whether its gradient needs a sum. For a projection among
// them the finding has the style that its siblings imply. Warnings with the same requirement are one, which names the
// first few modules.
void CheckUnclaimed(const CompiledPlan& plan, Diagnostics& diagnostics);

}  // namespace moonshard
