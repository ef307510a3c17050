// ReadRecipe: the values of a tensor that is made of several tensors of a checkpoint, or of parts of one
// (weight_recipe.h):
// of any shard of it only the bytes that the shard is made of, but for a reshape, whose source is read in full.
// Stages before: weight_recipe.h; where the bytes are, a checkpoint or a sharded one. Stages after: apply/load.h,
// checkpoint.
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

// Where the tensors that recipes name are.
class RecipeSource {
 public:
  virtual ~RecipeSource() = default;
  // Nothing where there is no such tensor.
  virtual std::optional<RecipeTensor> Find(const std::string& name) const = 0;
  // The indices `dims` of a tensor that is there, row-major, into ShardBytes bytes.
  virtual Failure Read(const std::string& name, const std::vector<std::vector<Interval>>& dims, void* to) = 0;
};

class CheckpointSource : public RecipeSource {
 public:
  // Both outlive it.
  CheckpointSource(const Checkpoint& checkpoint, ShardReader& reader) : checkpoint_(checkpoint), reader_(reader) {}
  std::optional<RecipeTensor> Find(const std::string& name) const override;
  Failure Read(const std::string& name, const std::vector<std::vector<Interval>>& dims, void* to) override;

 private:
  const Checkpoint& checkpoint_;
  ShardReader& reader_;
};

// Whether the source has every tensor that the recipe names.
bool HasSources(const WeightRecipe& recipe, const RecipeSource& source);
// The first of the recipes that has all of its tensors; nullptr where none has.
const WeightRecipe* FirstThatHolds(const std::vector<WeightRecipe>& recipes, const RecipeSource& source);

// Shape and type of what the recipe makes; nothing where its tensors do not fit each other or the recipe is
// kUnsupported, with the reason in `why`.
// All of its tensors are there. Tensors of less than a byte an element have no recipe but their name.
std::optional<RecipeTensor> MadeBy(const WeightRecipe& recipe, const RecipeSource& source, std::string& why);

// By path of a parameter the recipe that holds; without those that are the tensor of the parameter's own name. Adds
// errors to `found` (kTensorMismatch): tensors that do not fit each other.
std::map<std::string, const WeightRecipe*> RecipesThatHold(const WeightRecipes& recipes, const RecipeSource& source,
                                                           Diagnostics& found);

// The indices `dims` of the result, row-major, into ShardBytes bytes. MadeBy has a value. Errors: those of the source.
Failure ReadRecipe(const WeightRecipe& recipe, RecipeSource& source, const std::vector<std::vector<Interval>>& dims,
                   void* to);

// Whether some part of it is read in full for any shard.
bool HasReshape(const WeightRecipe& recipe);

}  // namespace moonshard
