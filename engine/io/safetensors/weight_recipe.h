// WeightRecipe: how a tensor of a model is made from tensors of a checkpoint that have other names or forms: experts
// that are stored one by one and computed as a stack, or projections that are stored separately and computed as one.
// Stage before: engine/io/exported_program, which reads the recipes. Stages after: read_recipe.h, which reads only the
// bytes from which a shard is made, and invert_recipes.h, which makes recipes for the opposite direction.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace moonshard {

// Each element of the result is an element of a checkpoint tensor. kUnsupported makes no tensor: it marks a conversion
// that computes new values. Loading a checkpoint that has the input tensors of such a conversion is an error.
struct WeightRecipe {
  enum class Kind : uint8_t { kTensor, kStack, kConcatenate, kSlice, kSelect, kPermute, kReshape, kUnsupported };
  Kind kind = Kind::kTensor;
  std::string tensor;               // kTensor: its name in the checkpoint
  std::vector<WeightRecipe> parts;  // kStack, kConcatenate, kUnsupported: any number; kTensor: none; others: one
  int64_t dim = 0;                  // kStack: the new dim; also of kConcatenate, kSlice, kSelect
  int64_t start = 0;                // kSlice: the first index; kSelect: the index
  int64_t stop = 0;                 // kSlice: the end of the range, exclusive
  std::vector<int64_t> shape;       // kReshape: of the result; kPermute: the input dim of each dim of the result
  std::string reason;               // kUnsupported: what the conversion does
  bool operator==(const WeightRecipe&) const = default;

  // Adds the names of the checkpoint tensors in the recipe to `names`, in order.
  void AddSources(std::vector<std::string>& names) const;
};

// The recipes of each parameter, by path, in order of preference: the first recipe whose tensors all exist is used. A
// parameter without such a recipe is loaded from the tensor of its own name.
using WeightRecipes = std::map<std::string, std::vector<WeightRecipe>>;

}  // namespace moonshard
