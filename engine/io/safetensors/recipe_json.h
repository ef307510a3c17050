// RecipeJson: recipes of weights as JSON, in the form that programs and sharded checkpoints use
// (engine/models/program/export/README.md, RECIPE).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/core/base/json.h"
#include "engine/io/safetensors/weight_recipe.h"

namespace moonshard {

// Reads the recipes of one file; use one reader per file. The reader limits the total size of the tensor names, because
// a numbered stack is a short text that expands to many names.
class RecipeJsonReader {
 public:
  // Returns the recipe in `json`. Throws json_fields::Fault for an unknown kind of recipe, a field that is missing or
  // has the wrong type, nesting deeper than 64, a slice, order of dims or shape that no tensor can have, or too many
  // names. `depth`: of the recursion; callers pass 0.
  WeightRecipe Read(const JsonValue& json, int depth = 0);

 private:
  // Counts `tensors` tensors with names of `name_bytes` bytes, before they are made.
  void Count(size_t tensors, size_t name_bytes);
  void ReadPart(const JsonValue& part, int depth, WeightRecipe& out);
  void ReadParts(const JsonValue& list, int depth, WeightRecipe& out);
  void ReadNumbered(const std::string& text, int64_t count, WeightRecipe& out);

  size_t bytes_ = 0;
};

// Returns the JSON of `recipe`, from which RecipeJsonReader::Read makes an equal recipe; null for kUnsupported.
JsonValue ToJson(const WeightRecipe& recipe);

}  // namespace moonshard
