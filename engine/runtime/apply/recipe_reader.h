// RecipeReader: reads this rank's shard of a tensor that is made of several tensors of a checkpoint, or of parts of one
// (engine/io/safetensors/weight_recipe.h): only the bytes that the shard is made of, but for a reshape, whose source is read in full.
// Part of load.h.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/io/safetensors/checkpoint.h"
#include "engine/io/safetensors/reader.h"
#include "engine/io/safetensors/weight_recipe.h"
#include "engine/layout/shards.h"

namespace moonshard {

// Whether the checkpoint has every tensor that the recipe names.
bool HasSources(const WeightRecipe& recipe, const Checkpoint& checkpoint);

// The shape of what the recipe makes; nothing where its tensors do not fit each other, with the reason in `why`. All sources
// are there.
std::optional<std::vector<int64_t>> ShapeOf(const WeightRecipe& recipe, const Checkpoint& checkpoint, std::string& why);

// The indices `dims` of the result, in the dtype of the checkpoint, on the CPU. ShapeOf has a value. Throws PlanError: as
// ShardReader::ReadShard.
at::Tensor ReadRecipe(const WeightRecipe& recipe, const Checkpoint& checkpoint, ShardReader& reader,
                      const std::vector<std::vector<Interval>>& dims);

}  // namespace moonshard
