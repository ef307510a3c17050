// A fused weight (query, key and value in one; gate and up in one) that is sharded as if it were one matrix gives every
// rank features that do not belong together, and numbers that are wrong without an error. No shape shows
// what a weight is made of; its usual names do.
// Stage: at the end of compile, over what has been compiled so far.
#pragma once

#include "engine/core/base/diagnostic.h"
#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {

// kFusedAsOne for each rule that shards the output features of a module with a fused weight's name in plain shards and
// lets them leave in shards. Not where the features are gathered again, or are declared as parts (`packed`) or heads
// (`heads`: those of one head are then stored together). An error; in a lenient plan a warning.
void CheckFusedAsOne(const CompiledPlan& plan, Diagnostics& diagnostics);

}  // namespace moonshard
