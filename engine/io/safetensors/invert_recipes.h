// InvertRecipes: inverts the recipes that make the tensors of a model from those of a checkpoint. The result makes the
// tensors of the checkpoint from those of the model. The inverse of a stack is a select, the inverse of a concatenation
// is a slice; slices of one checkpoint tensor that several model tensors take are concatenated again.
//
//   experts = stack(a.0, a.1)                      a.0 = select(experts, 0, 0), a.1 = select(experts, 0, 1)
//   q = slice(qkv, 0, 0, 64), kv = slice(qkv, 0, 64, 96)          qkv = concatenate(q, kv)
//
// Stage before: weight_recipe.h. Stage after: engine/io/checkpoint, which merges shards into the original files.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/io/safetensors/read_recipe.h"
#include "engine/io/safetensors/weight_recipe.h"

namespace moonshard {

struct InvertedRecipes {
  std::map<std::string, WeightRecipe> recipes;  // by name of the checkpoint tensor
  std::vector<std::string> incomplete;          // checkpoint tensors that are only partly in the model, sorted
};

// Returns the inverse of `made`, which maps the path of a model tensor to the recipe that makes it. MadeBy must have a
// value for every recipe with this `source`. If two model tensors have the same elements of a checkpoint tensor, these
// elements are taken from the tensor whose path is first.
InvertedRecipes InvertRecipes(const std::map<std::string, const WeightRecipe*>& made, const RecipeSource& source);

}  // namespace moonshard
