// ModelForm: the form of the model directory that a training run began from: which safetensors files it has, with which
// tensors in which order, and its other files. Written into every step of the run, so that merging a step gives such a
// directory with the weights as they are now: byte for byte the same directory while they are those that it had.
// Stage before: a model directory, or a step. Stage after: Merge (convert.h).
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
  std::map<std::string, std::string> headers;  // by safetensors file: its header, with the length before it
  std::map<std::string, std::string> kept;     // by name: the content of every other file
  std::vector<std::string> folders;            // sorted
  // Of tensors in the headers that the model has in another form: how they are made of the model's.
  std::map<std::string, WeightRecipe> made;
};

// Files besides the tensors that are longer than this are not part of the form.
inline constexpr uint64_t kMostKeptBytes = uint64_t{64} << 20;

// A directory without safetensors files (a run from a config alone) has other files only. `recipes` make the model's
// tensors of the directory's (Program::recipes). Errors: those of Checkpoint::Open, ListModelFiles and RecipesThatHold.
// Warnings: a file that is left out because it is too long; tensors that cannot be made of the model's again, in whose
// place merging gives those of the model.
Result<ModelForm> FormOfModel(const std::string& folder, const WeightRecipes& recipes = {});
// Of a sharded checkpoint. Errors: kFileNotFound, kFileUnreadable, kCorruptData.
Result<ModelForm> FormOfSharded(const std::string& folder, const Manifest& manifest);

// A tensor of the model, as it is now.
struct FormTensor {
  std::string name;  // in the manifest
  std::vector<std::string> aliases;
  bool is_buffer = false;
};

// The form for these tensors (which the manifest has): a file keeps its header where all of its tensors still have
// their dtype and shape; else the header is made anew, as is an index that names the tensors' files or their size. The
// form's tensors that the model lacks are left out; the model's parameters that the form lacks go to the last file.
// Without files all tensors, buffers too, go to model.safetensors.
ModelForm FitForm(const ModelForm& form, const std::vector<FormTensor>& tensors, const Manifest& manifest);

// Writes the form's files into `directory` and adds them to the manifest (source, kept, directories); adds their names
// to `files`. Errors: kWriteFailed.
Failure WriteForm(Storage& storage, const std::string& folder, const ModelForm& form, Manifest& manifest,
                  std::vector<std::string>& files);

}  // namespace moonshard
