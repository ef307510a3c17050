// WeightRecipe: how a tensor of a model is made from tensors of a checkpoint whose names or forms differ: experts that
// are stored one by one and computed as a stack, projections that are stored apart and computed as one. Made by
// engine/io/exported_program. Stages after: read_recipe.h, which reads only what a shard is made of, and
// invert_recipes.h, which gives the checkpoint's own tensors back.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace moonshard {

// Each element of the result is an element of a checkpoint tensor. kUnsupported makes nothing: it stands for a
// conversion that computes, so that a checkpoint with its tensors cannot be loaded.
struct WeightRecipe {
  enum class Kind : uint8_t { kTensor, kStack, kConcatenate, kSlice, kSelect, kPermute, kReshape, kUnsupported };
  Kind kind = Kind::kTensor;
  std::string tensor;               // of kTensor: its name in the checkpoint
  std::vector<WeightRecipe> parts;  // of kStack, kConcatenate and kUnsupported all, of the others one
  int64_t dim = 0;                  // of kStack: the new one; of kConcatenate, kSlice, kSelect
  int64_t start = 0;                // of kSlice: the first index; of kSelect: the index
  int64_t stop = 0;                 // of kSlice: behind the last index
  std::vector<int64_t> shape;       // of kReshape; of kPermute: for each dim of the result the one that it was
  std::string reason;               // of kUnsupported: what the conversion does
  bool operator==(const WeightRecipe&) const = default;

  // The names of checkpoint tensors in it, in order.
  void AddSources(std::vector<std::string>& names) const;
};

// By path of a parameter: in order of preference, the first one whose tensors all exist holds. A parameter without one
// is the tensor of its own name.
using WeightRecipes = std::map<std::string, std::vector<WeightRecipe>>;

}  // namespace moonshard
