// Compile: checks a matched plan on a mesh and fills in all layouts and steps. MatchedPlan + MeshShape -> CompiledPlan
//
// Resolves every style for the modules that its rule claims (parameters by name, kinds, heads, negative dims). Checks
// before the model is changed that dims exist, that heads and packed sizes fit the axis, that every redistribution is
// in the table of redistributions, that tied parameters have one layout, that no replica is counted twice in a sum, and
// that every parameter beside sharded parameters has a rule.
// Stage before: match. Stage after: apply, explain.
#pragma once

#include "engine/core/base/result.h"
#include "engine/plan/compile/compiled_plan.h"
#include "engine/plan/match/match.h"

namespace moonshard {

// Returns all errors together: kNoSuchParameter, kBadDim, kHeadsDoNotFit, kPackedDoesNotFit, kNoSuchRedistribution,
// kStyleDoesNotFit, kUnreachablePartial, kFusedAsOne, kTieConflict, kNotHookable, kNotSupported, and
// kUnclaimedParameter for a parameter beside sharded parameters.
// Warnings: kUnclaimedParameter for other parameters, kUnusedAxis, kNotSupported for a style that can be compiled but
// not run, kStyleDoesNotFit for a weight and redistributions that contradict each other but would run.
Result<CompiledPlan> CompilePlan(const MatchedPlan& matched, const MeshShape& mesh);
// Returns what is wrong with the style of each rule on the modules that it claims, without what modules say of each
// other: for a plan of which other rules match nothing (MatchRules).
Diagnostics CheckStyles(const MatchedPlan& matched, const MeshShape& mesh);

}  // namespace moonshard
