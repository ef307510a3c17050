// Compile: is it possible, and what exactly happens.   MatchedPlan + MeshShape -> CompiledPlan
//
// Resolves every style against the module it lands on (parameters by name, kinds, heads, negative dims), and proves
// what can be proven before a model is touched: dims exist, heads and packed sizes fit the axis, every redistribution
// has a row in the layout algebra, tied parameters agree, no replica is counted twice in a sum, no parameter is
// forgotten.
// Stage before: match. Stage after: apply, explain.
#pragma once

#include "engine/core/base/result.h"
#include "engine/plan/compile/compiled_plan.h"
#include "engine/plan/match/match.h"

namespace moonshard {

// Errors, all at once: kNoSuchParameter, kBadDim, kHeadsDoNotFit, kPackedDoesNotFit, kNoSuchRedistribution,
// kStyleDoesNotFit, kUnreachablePartial, kTieConflict, kNotSupported, and kUnclaimedParameter for a parameter beside
// sharded ones.
// Warnings: kUnclaimedParameter for other parameters, kUnusedAxis, kStyleDoesNotFit for a weight and redistributions
// that would run and contradict each other.
Result<CompiledPlan> CompilePlan(const MatchedPlan& matched, const MeshShape& mesh);

}  // namespace moonshard
