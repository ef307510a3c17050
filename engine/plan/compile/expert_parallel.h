// ExpertParallel: the expert-parallel part of compile. Experts are distributed over the mesh axis ep: a rule gives
// their parameters shards on ep, and the style of the module that calls them has an exchange, which sends each token to
// the ranks that have its experts (Lepikhin et al. 2020, arXiv:2006.16668). An expert then receives the tokens of all
// ranks of ep, so its gradient has no sum over ep.
#pragma once

#include "engine/core/base/diagnostic.h"
#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {

// Checks on a mesh with ep that every parameter with a layout on ep is an expert of a module with an exchange, that the
// rank that has it is the one to which the exchange sends its tokens, and that every parameter and buffer of stacked
// experts with an entry for each expert has such a layout. Call it when the layouts of parameters are final. Errors:
// kNotSupported (a layout on ep without an exchange, or other than a shard; stacked experts with shards on cp),
// kStyleDoesNotFit (an expert on another rank of ep; a parameter that is no expert; experts within experts). Warning:
// kUnusedAxis (a section, and no module with an exchange).
void CheckExpertParallel(const CompiledPlan& plan, Diagnostics& diagnostics);

}  // namespace moonshard
