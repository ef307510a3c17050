// Checks: what is looked for in a compiled plan beyond its layouts, each a finding that names rules and modules.
// Stage before: compile, which has filled in every layout. Stage after: ResolvePlan, which collects the findings.
#pragma once

#include <optional>
#include <string>

#include "engine/core/base/diagnostic.h"
#include "engine/layout/module_tree.h"
#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {

// kUnclaimedParameter for parameters that no rule claims: a warning, or an error between sharded siblings, where a
// replicated parameter meets shards and only the author knows whether its gradient needs a sum. For a projection the
// finding suggests the style that its siblings imply. Findings that suggest the same are one, which names the first few
// modules.
void CheckUnclaimed(const CompiledPlan& plan, Diagnostics& diagnostics);

// kFusedAsOne for each rule that shards the output features of a fused weight (query, key and value in one; gate and up
// in one) in plain shards and leaves the output sharded: each rank would hold features that do not belong together, and
// the numbers are wrong without an error. A shape does not tell what a weight is made of, so modules are found by the
// usual names. Not where the features are gathered again, or are declared `packed` or `heads` (the features of one head
// are then adjacent). An error; in a lenient plan a warning.
void CheckFusedAsOne(const CompiledPlan& plan, Diagnostics& diagnostics);

// kStyleDoesNotFit for each rule whose style shards a matrix of packed integers on tp: a quantized weight
// (bitsandbytes, GPTQ, AWQ, MXFP4), whose rows and columns are not those of the matrix that it stands for, and whose
// scales have shapes of their own. The format is named where the parameters beside it show it. Not where a rule names
// the parameter itself: its author knows what it holds. Each line of the plan is reported once. An error.
void CheckPackedIntegers(const CompiledPlan& plan, Diagnostics& diagnostics);

// kStyleDoesNotFit for each rule whose weight layout contradicts the redistributions of its style. A Linear sharded
// along its output features makes shards; sharded along its input features it needs shards and makes partial values;
// replicated it needs full features and makes full ones. A norm or scale sharded along its features needs shards.
// Checked on kinds that multiply their input by `weight` as it is: Linear, and modules that own vectors alone;
// redistributions that are not declared are not checked. Kinds that were guessed from tensor headers: names that
// usually hold a transposed weight (c_attn, c_fc, c_proj) are left out, and so are the weights of a masked lookup. An
// error where shapes cannot fit; a warning where the module runs with wrong numbers or gradients, and in a lenient
// plan.
void CheckWeightAndRedistributions(const CompiledPlan& plan, Diagnostics& diagnostics);

// kMostlyReplicated, with the largest replicated parameters, where the mesh has an axis above 1 and the plan shards
// less than half of the model's elements: its rules were probably written for another tree. Nothing where it shards
// none at all, which is the finding of an unused axis. Tied tensors count once, buffers do not count.
std::optional<Diagnostic> FindMostlyReplicated(const CompiledPlan& plan);

// kNotHookable at the plan line `where`, for a module whose calls must be intercepted and cannot be. `consequence` ends
// the message: "style 'x' would not run".
Diagnostic NotHookable(const Module& module, const std::string& consequence, const SourceSpan& where);

}  // namespace moonshard
