// Checks: checks of a compiled plan that need more than one layout. Each finding names a rule's line and a module.
// Stage before: compile, which has filled in every layout. Stage after: ResolvePlan, which collects the findings.
#pragma once

#include <optional>
#include <string>

#include "engine/core/base/diagnostic.h"
#include "engine/layout/module_tree.h"
#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {

// Reports kUnclaimedParameter for parameters that no rule claims. The finding is a warning, or an error if a sibling
// module has sharded parameters (in a lenient plan a warning too): the gradient of a replicated parameter beside shards
// may need a sum over the ranks, which only the author can decide. Beside sharded siblings, a module that only
// default(style) claims is reported too, unless the style shards it. For a projection the finding suggests the style
// that its siblings imply. Warnings with the same requirement are joined into one warning, which names the first few
// modules.
void CheckUnclaimed(const CompiledPlan& plan, Diagnostics& diagnostics);

// Reports kFusedAsOne for each rule that shards the output features of a fused weight (query, key and value in one;
// gate and up in one) as plain shards and leaves the output sharded: each rank would have features that do not belong
// together, and would compute wrong values without an error. Fused weights are recognized by the usual module names,
// since shapes do not show them. Reports nothing if the output is gathered, or if the layout is declared with `packed`
// or `heads` (the features of one head are then adjacent). The finding is an error, in a lenient plan a warning.
void CheckFusedAsOne(const CompiledPlan& plan, Diagnostics& diagnostics);

// Reports kStyleDoesNotFit for each rule whose style shards a matrix of packed integers on tp: a quantized weight
// (bitsandbytes, GPTQ, AWQ, MXFP4). Its rows and columns are not those of the original matrix, and its scales have
// other shapes. The message names the format if the parameters beside the weight show it. A parameter that a rule names
// by its path is not reported, nor are stacked experts of which each rank has some with all that belongs to them (the
// first of at least three dims). Each line of the plan is reported once, and findings on it about parameters without a
// layout are dropped. The finding is an error.
void CheckPackedIntegers(const CompiledPlan& plan, Diagnostics& diagnostics);

// Reports kStyleDoesNotFit for each rule whose weight layout contradicts the inputs and outputs of its style. If the
// weight of a Linear is sharded along the output features, its output must have sharded features. If the weight is
// sharded along the input features, the input must have sharded features and the output must be partial. If the weight
// is replicated, the input must have full features. The input of a norm or scale whose weight is sharded must have
// sharded features. If the weight of a convolution is sharded along channels, those of its output or its input must be
// sharded, and not its positions. Only Linear modules, convolutions and modules that own only vectors are checked, and
// only declared inputs and outputs. On a tree from headers, where kinds are guesses, modules with the usual names of a
// transposed weight (c_attn, c_fc, c_proj, q_attn) and masked lookups are not checked. The finding is an error if
// shapes cannot fit, and a warning if the module would run with wrong values or gradients, or if the plan is lenient.
void CheckWeightAndRedistributions(const CompiledPlan& plan, Diagnostics& diagnostics);

// A gradient of which each rank of tp computes a term, while the plan declares that it is the same on every rank.
struct UnreducedGradient {
  bool of_weight = false;  // of the module's weight; else of its first argument
  Diagnostic error;        // kStyleDoesNotFit at the line of the rule, with what would reduce the gradient
};

// Returns the gradient that the backward of a call of `module` leaves unreduced on tp, whether or not another
// contradiction of the same style is reported first. Two cases: the weight of a Linear is sharded along the output
// features, and the first input is used as replicate (not shared), so the gradient of the input is a term; or the
// weight of a Linear, a norm or a scale is replicate (not shared), and the first input is used as a shard, so the
// gradient of the weight is a term. A forward computes right values in both cases. Modules that
// CheckWeightAndRedistributions does not check have none.
std::optional<UnreducedGradient> FindUnreducedGradient(const CompiledPlan& plan, size_t module);

// Returns kMostlyReplicated with the largest replicated parameters if the plan shards less than half of the model's
// elements: its rules were probably written for another model. Returns nullopt if the plan shards no element, since
// CheckAxes (mesh_axes.h) reports the unused axis, and on a mesh without tp, where ep shards experts alone. Tied
// tensors count once, buffers do not count.
std::optional<Diagnostic> FindMostlyReplicated(const CompiledPlan& plan);

// Returns kNotHookable at the plan line `where`, for a module whose calls must be intercepted, but do not pass through
// the engine.
// `consequence` is the end of the message: "style 'x' would not run".
Diagnostic NotHookable(const Module& module, const std::string& consequence, const SourceSpan& where);

}  // namespace moonshard
