// The layout of a weight and the redistributions of its style declare the same thing twice: a Linear sharded along its
// output features makes shards of them, along its input features it takes shards and makes terms of a sum, and
// replicated it takes and makes full features; a norm or a scale sharded along its features works on shards. Where the
// two contradict each other the module runs and computes something else, or meets a shape that does not fit.
// Stage: at the end of compile, over what has been compiled so far.
#pragma once

#include "engine/core/base/diagnostic.h"
#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {

// kStyleDoesNotFit for each rule whose style contradicts itself on a module of a kind that is known to multiply its
// input with `weight` as it is: Linear, and modules that own vectors alone. Redistributions that are not declared are
// passed over.
// Headers only guess kinds: there names that usually hold a transposed weight (c_attn, c_fc, c_proj) are left out, and
// weights of a masked lookup. An error where shapes cannot fit; a warning where the module runs and its numbers, or the
// gradients, are wrong, and in a lenient plan.
void CheckWeightAndRedistributions(const CompiledPlan& plan, Diagnostics& diagnostics);

}  // namespace moonshard
