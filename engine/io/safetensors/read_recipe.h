// ReadRecipe: reads a tensor, or a shard of a tensor, that a recipe (weight_recipe.h) makes from one or several tensors
// of a checkpoint. Only the bytes from which the shard is made are read, except for a reshape, whose input is read in
// full.
// Stages before: weight_recipe.h; a checkpoint or a sharded checkpoint, which has the bytes. Stages after:
// engine/runtime/sharded_model/load.h, engine/io/checkpoint.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/base/result.h"
#include "engine/io/safetensors/checkpoint.h"
#include "engine/io/safetensors/reader.h"
#include "engine/io/safetensors/weight_recipe.h"
#include "engine/io/storage/storage.h"
#include "engine/layout/dtype.h"
#include "engine/layout/shards.h"

namespace moonshard {

struct RecipeTensor {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  bool operator==(const RecipeTensor&) const = default;
};

// The tensors that recipes name.
class RecipeSource {
 public:
  virtual ~RecipeSource() = default;
  // Returns dtype and shape of a tensor, or nullopt if there is no such tensor.
  virtual std::optional<RecipeTensor> Find(const std::string& name) const = 0;
  // Reads the indices `dims` of an existing tensor, row-major, into `to`, which must have ShardBytes bytes.
  virtual Failure Read(const std::string& name, const std::vector<std::vector<Interval>>& dims, void* to) = 0;
};

class CheckpointSource : public RecipeSource {
 public:
  // `checkpoint` and `reader` must outlive the object.
  CheckpointSource(const Checkpoint& checkpoint, ShardReader& reader) : checkpoint_(checkpoint), reader_(reader) {}
  std::optional<RecipeTensor> Find(const std::string& name) const override;
  Failure Read(const std::string& name, const std::vector<std::vector<Interval>>& dims, void* to) override;

 private:
  const Checkpoint& checkpoint_;
  ShardReader& reader_;
};

// Returns whether the source has every tensor that the recipe names.
bool HasSources(const WeightRecipe& recipe, const RecipeSource& source);
// Returns the first recipe all of whose tensors exist, or nullptr.
const WeightRecipe* FirstThatHolds(const std::vector<WeightRecipe>& recipes, const RecipeSource& source);

// Returns dtype and shape of the tensor that the recipe makes. All tensors that the recipe names must exist. Returns
// nullopt, with the reason in `why`, if these tensors do not fit each other, if the recipe is kUnsupported, or if a
// recipe other than kTensor has a tensor of a sub-byte dtype.
std::optional<RecipeTensor> MadeBy(const WeightRecipe& recipe, const RecipeSource& source, std::string& why);

// Returns for each parameter, by path, the first recipe all of whose tensors exist. Parameters that are loaded from the
// tensor of their own name are left out. Adds kTensorMismatch to `found` if the tensors of a recipe do not fit each
// other.
std::map<std::string, const WeightRecipe*> RecipesThatHold(const WeightRecipes& recipes, const RecipeSource& source,
                                                           Diagnostics& found);

// Reads the indices `dims` of the tensor that the recipe makes, row-major, into `to`, which must have ShardBytes bytes.
// MadeBy must have a value for the recipe. Errors: those of the source.
Failure ReadRecipe(const WeightRecipe& recipe, RecipeSource& source, const std::vector<std::vector<Interval>>& dims,
                   void* to);

// Returns whether the recipe contains a reshape, whose input is read in full for any shard.
bool HasReshape(const WeightRecipe& recipe);

}  // namespace moonshard
