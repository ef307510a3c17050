// InvertRecipes: inverts the recipes that make the tensors of a model from those of a checkpoint. The inverted recipes
// make the tensors of the checkpoint from those of the model. The inverse of a stack is a select, and the inverse of a
// concatenation is a slice. If several model tensors are slices of one checkpoint tensor, the inverse concatenates
// these model tensors.
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

// Returns the inverse of `made`, which maps the path of each model tensor to its recipe. MadeBy must have a value for
// every recipe with this `source`. If two model tensors have the same elements of a checkpoint tensor, these elements
// are taken from the model tensor whose path comes first in `made`.
InvertedRecipes InvertRecipes(const std::map<std::string, const WeightRecipe*>& made, const RecipeSource& source);

}  // namespace moonshard
