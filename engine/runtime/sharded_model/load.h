// Load: fills a sharded model with given values: from a checkpoint, of which each rank reads its own shards and no
// other bytes, or from full tensors in memory.
//
//   LoadCheckpoint(model, Checkpoint::Open("gpt2").ValueOrThrow(),
//                  {.renamed = {{"^transformer\\.", ""}}, .transposed = {"h.*.{attn,mlp}.c_*.weight"}});
//   LoadFullState(copy, FullState(model));
//
// Stage before: applied_plan.h, whose parameters may have been made under DeferInit. Instead of: initialize.h.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/io/safetensors/checkpoint.h"
#include "engine/io/safetensors/weight_recipe.h"
#include "engine/runtime/apply/applied_plan.h"

namespace moonshard {

// How tensors that another library named and laid out become those of the model.
struct NameRules {
  // RE2 expressions with what replaces the first occurrence in a name ("\\1" is the first group); ^ and $ anchor them.
  // Applied to every name in this order, each to what the one before has made. {"^transformer\\.", ""} removes a
  // prefix, {"^", "model."} adds one. An expression that occurs in no name changes nothing.
  std::vector<std::pair<std::string, std::string>> renamed = {};
  // Parameters of the model, by patterns as in plans ("h.*.mlp.c_fc.weight"), that are stored with their two dims
  // swapped: [in, out] for the [out, in] of a Linear, as GPT-2's Conv1D has them. A square weight has the same shape
  // both ways, so only this declares it.
  std::vector<std::string> transposed = {};
  // Parameters by path that are made of other tensors, or of several: the first recipe whose tensors are all there
  // holds; of a parameter without one that holds, the tensor of its own name. Names in recipes are those of the
  // checkpoint, before `renamed`. An exported program brings its own (Program::recipes). LoadFullState takes none.
  WeightRecipes recipes = {};
};

// Every parameter from the tensor of its path, or of one it is tied to; buffers where the checkpoint has them. A tensor
// of another dtype is converted. Returns warnings: tensors of the checkpoint that the model does not have.
// Throws PlanError, all errors at once and before a parameter is touched: kMissingTensor, kTensorMismatch (another
// shape), kBadPattern (an expression of `names`), kUnmatchedRule (a pattern of `names.transposed` that is not a
// parameter of two dims), kBadArgument (two tensors that get one name); and while reading what ShardReader reports.
Diagnostics LoadCheckpoint(AppliedPlan& model, const Checkpoint& checkpoint, const NameRules& names = {});

// The same from full tensors by path, on any device: the inverse of FullState (state.h). Every rank is given the same
// tensors and takes its shards; no rank communicates. Warnings and errors as above; kTensorMismatch also for an
// undefined tensor or one without values (on the meta device).
Diagnostics LoadFullState(AppliedPlan& model, const std::map<std::string, at::Tensor>& state,
                          const NameRules& names = {});

}  // namespace moonshard
