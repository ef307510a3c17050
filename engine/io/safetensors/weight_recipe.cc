#include "engine/io/safetensors/weight_recipe.h"

namespace moonshard {

void WeightRecipe::AddSources(std::vector<std::string>& names) const {
  if (kind == Kind::kTensor) names.push_back(tensor);
  for (const WeightRecipe& part : parts) part.AddSources(names);
}

}  // namespace moonshard
