// Recipes of weights as JSON (the form: engine/models/program/export/README.md, RECIPE), as programs and sharded
// checkpoints hold them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/core/base/json.h"
#include "engine/io/safetensors/weight_recipe.h"

namespace moonshard {

// Reads the recipes of one file; use one reader per file. It bounds the total size of the tensor names, because a
// numbered stack is a short text that expands to many names.
class RecipeJsonReader {
 public:
  // Throws json_fields::Fault for an unknown kind of recipe, a missing or mistyped field, nesting deeper than 64, a
  // range or dims that no tensor has, too many names. `depth`: of the recursion, 0 for callers.
  WeightRecipe Read(const JsonValue& json, int depth = 0);

 private:
  void Count(const WeightRecipe& tensor);
  void ReadPart(const JsonValue& part, int depth, WeightRecipe& out);
  void ReadParts(const JsonValue& list, int depth, WeightRecipe& out);
  void ReadNumbered(const std::string& text, int64_t count, WeightRecipe& out);

  size_t bytes_ = 0;
};

// The JSON of `recipe`, from which RecipeJsonReader::Read makes an equal recipe.
JsonValue ToJson(const WeightRecipe& recipe);

}  // namespace moonshard
