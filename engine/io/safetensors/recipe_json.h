// Recipes of weights as JSON (the form: engine/models/program/export/README.md, RECIPE), as programs and sharded
// checkpoints hold them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/core/base/json.h"
#include "engine/io/safetensors/weight_recipe.h"

namespace moonshard {

// Reads the recipes of one file. What they make is bounded: a stack of numbered tensors is a short text for many names.
class RecipeJsonReader {
 public:
  // Throws json_fields::Fault: of no known kind, a field that is missing or of another kind, nested too deep, parts
  // that no tensor has, too many names.
  WeightRecipe Read(const JsonValue& json, int depth = 0);

 private:
  void Count(const WeightRecipe& tensor);
  void ReadPart(const JsonValue& part, int depth, WeightRecipe& out);
  void ReadParts(const JsonValue& list, int depth, WeightRecipe& out);
  void ReadNumbered(const std::string& text, int64_t count, WeightRecipe& out);

  size_t bytes_ = 0;
};

// What Read reads as the same recipe.
JsonValue ToJson(const WeightRecipe& recipe);

}  // namespace moonshard
