// ModelForm: the form of the model directory from which a training run began: its safetensors files, with the names and
// the order of their tensors, and its other files. Every step of the run stores the form, so that merging a step gives
// a directory of this form with the weights of the step. If the weights did not change, the merged directory equals the
// original one byte for byte.
// Stage before: a model directory, or a step. Stage after: MergeSharded (convert.h).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/core/base/result.h"
#include "engine/io/checkpoint/manifest.h"
#include "engine/io/safetensors/weight_recipe.h"
#include "engine/io/storage/storage.h"

namespace moonshard {

struct ModelForm {
  std::map<std::string, std::string> headers;  // by safetensors file: its header, including the length field
  std::map<std::string, std::string> kept;     // by name: the content of every other file
  std::vector<std::string> folders;            // directories within the model directory, sorted
  // Recipes for the tensors in the headers that the model has in another form: each recipe makes such a tensor from
  // tensors of the model.
  std::map<std::string, WeightRecipe> made;
};

// Files other than safetensors files that are longer than this are not part of the form.
inline constexpr uint64_t kMostKeptBytes = uint64_t{64} << 20;

// Returns the form of a model directory. The form of a directory without safetensors files (a run from a config alone)
// has only the other files. `recipes` make the tensors of the model from the tensors of the directory
// (Program::recipes). Errors: those of Checkpoint::Open, ListModelFiles and RecipesThatHold. Warnings: a file that is
// left out because it is too long; a tensor that cannot be made from the tensors of the model. For such a tensor,
// merging writes the tensors of the model instead.
Result<ModelForm> FormOfModel(const std::string& folder, const WeightRecipes& recipes = {});
// Returns the form that a sharded checkpoint stores. Errors: kFileNotFound, kFileUnreadable, kCorruptData.
Result<ModelForm> FormOfSharded(const std::string& folder, const Manifest& manifest);

// A tensor of the model at the time of the save.
struct FormTensor {
  std::string name;                  // in the manifest
  std::vector<std::string> aliases;  // tied names
  bool is_buffer = false;
};

// Returns the form, adapted to these tensors, which must be in the manifest. A file keeps its header if all of its
// tensors still have the same dtype and shape; otherwise the file gets a new header, and weight_map and total_size of
// the index are updated. Tensors of the form that the model no longer has are removed. Parameters of the model that the
// form does not have are added to the last file. If the form has no safetensors files, all tensors, including buffers,
// are added to model.safetensors.
ModelForm FitForm(const ModelForm& form, const std::vector<FormTensor>& tensors, const Manifest& manifest);

// Writes the files of the form into the directory `folder`, adds the form to the manifest (source, kept, folders,
// made), and adds the names of the files to `files`. Errors: kWriteFailed.
Failure WriteForm(Storage& storage, const std::string& folder, const ModelForm& form, Manifest& manifest,
                  std::vector<std::string>& files);

}  // namespace moonshard
