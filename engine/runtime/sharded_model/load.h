// Load: fills a sharded model with given values: from a checkpoint, from which each rank reads only the bytes of its
// own shards, or from full tensors in memory.
//
//   LoadCheckpoint(model, Checkpoint::Open("gpt2").ValueOrThrow(),
//                  {.renamed = {{"^transformer\\.", ""}}, .transposed = {"h.*.{attn,mlp}.c_*.weight"}});
//   LoadFullState(copy, FullState(model));
//
// Stage before: applied_plan.h, whose parameters may have been made under DeferInit. Alternative: initialize.h.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/io/checkpoint/stored_adapter.h"
#include "engine/io/safetensors/checkpoint.h"
#include "engine/io/safetensors/weight_recipe.h"
#include "engine/runtime/apply/applied_plan.h"
#include "engine/runtime/sharded_model/initialize.h"

namespace moonshard {

// Rules that map the names and layouts of another library's tensors to those of the model's parameters.
struct NameRules {
  // Pairs of an RE2 expression and the text that replaces its first match in a name ("\\1" is the first group); ^ and $
  // anchor an expression. Every pair is applied to every name, in this order; each pair is applied to the result of the
  // previous pair. {"^transformer\\.", ""} removes a prefix, {"^", "model."} adds a prefix. An expression that matches
  // no name has no effect.
  std::vector<std::pair<std::string, std::string>> renamed = {};
  // Patterns as in plans ("h.*.mlp.c_fc.weight"), for parameters of the model that are stored with their two dims
  // swapped: as [in, out] instead of the [out, in] of a Linear, for example GPT-2's Conv1D. A square weight has the
  // same shape when its dims are swapped, so without this declaration the wrong values are loaded without an error.
  std::vector<std::string> transposed = {};
  // Recipes for parameters that are made of one or more tensors with other names or forms, by the path of the
  // parameter. The first recipe whose tensors all exist is used. If the tensors of no recipe all exist, the parameter
  // is loaded from the tensor of its own name. Recipes use the names of the checkpoint before `renamed` is applied. An
  // exported program has its own recipes (Program::recipes). LoadFullState ignores recipes.
  WeightRecipes recipes = {};
  // Values of buffers that the checkpoint does not have. Without a rule, and where it returns nullopt, such a buffer is
  // not changed. For an exported program: MissingBufferInit.
  InitialBufferRule buffers = {};
};

// Loads every parameter from the tensor of its path, or of the path of a tied parameter, and every buffer that the
// checkpoint contains or for which `names.buffers` returns a value; a model that was built without values cannot be
// called while a buffer has none (kNoValues).
// Converts between floating-point dtypes of at least 16 bits, from these to complex dtypes, between complex dtypes, and
// between integer dtypes (including bool). Not collective. Returns warnings: tensors of the checkpoint that the model
// does not have; and a note: buffers that got their values from `names.buffers`.
// Throws PlanError before any parameter changes: kMissingTensor, kTensorMismatch (another shape, or a dtype that is not
// converted), kBadPattern (an expression of `names`), kUnmatchedRule (a pattern of `names.transposed` that matches no
// parameter of two dims), kBadArgument (two tensors with the same name after `names.renamed`). Throws the errors of
// ShardReader while it reads.
Diagnostics LoadCheckpoint(AppliedPlan& model, const Checkpoint& checkpoint, const NameRules& names = {});

// Loads the factors of the adapter, of which each rank reads the bytes of its shards. The sections of `adapter` must be
// those of the plan with its name; factors of other adapters stay as they are. Not collective. Throws PlanError before
// any factor changes: kMissingTensor (a factor of the plan that `adapter` does not have, or the reverse),
// kTensorMismatch (another shape, or a dtype that is not converted); of the factors of each expert that are made of one
// tensor, the first. Throws the errors of ShardReader while it reads.
void LoadAdapter(AppliedPlan& model, const StoredAdapter& adapter);

// As LoadCheckpoint, but from full tensors by path, on any device: the inverse of FullState (state.h). Every rank
// passes the same tensors and copies its own shards out of them; ranks do not communicate. Warnings and errors are the
// same; kTensorMismatch is also thrown for an undefined tensor and for a tensor without values (on the meta device).
Diagnostics LoadFullState(AppliedPlan& model, const std::map<std::string, at::Tensor>& state,
                          const NameRules& names = {});

}  // namespace moonshard
