// InvertRecipes: from recipes that make a model's tensors of a checkpoint's, recipes that make the checkpoint's of the
// model's. A stack is undone by selecting, a concatenation by slicing; slices of one tensor that several of the model's
// take are joined again.
//
//   experts = stack(a.0, a.1)                      a.0 = select(experts, 0, 0), a.1 = select(experts, 0, 1)
//   q = slice(qkv, 0, 0, 64), kv = slice(qkv, 0, 64, 96)          qkv = concatenate(q, kv)
//
// Stage before: weight_recipe.h. Stage after: checkpoint, which merges shards into the files of the original.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/io/safetensors/read_recipe.h"
#include "engine/io/safetensors/weight_recipe.h"

namespace moonshard {

struct InvertedRecipes {
  std::map<std::string, WeightRecipe> recipes;  // by name in the checkpoint
  std::vector<std::string> incomplete;          // named by a recipe, and not all of it is in the model; sorted
};

// `made`: by path of a model's tensor the recipe that makes it, of tensors that `source` has (MadeBy has a value).
// Where two tensors of the model have the same elements of a checkpoint's, they are taken from the one whose path is
// first.
InvertedRecipes InvertRecipes(const std::map<std::string, const WeightRecipe*>& made, const RecipeSource& source);

}  // namespace moonshard
