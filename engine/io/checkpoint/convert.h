// ShardModel, MergeSharded: conversions between a model directory and a sharded checkpoint. ShardModel converts a model
// directory in Hugging Face form to a sharded checkpoint: one safetensors file per rank, or one for several ranks with
// the same shards. MergeSharded converts the sharded checkpoint back to the same model directory, byte for byte. Both
// functions need the metadata of all tensors and a few megabytes of buffers, independent of the sizes of the tensors;
// only a tensor whose recipe has a reshape is read as a full tensor. Both write through storage/staging.h: the output
// directory OUT is complete or unchanged, and if a call is killed, the next call with the same arguments resumes its
// work. A call leaves OUT unchanged if OUT already has the content that would be written; to find this out, ShardModel
// reads and hashes the source, and MergeSharded reads and hashes OUT.
// Stages before: safetensors (Checkpoint), compile (CompiledPlan). Content of the directory: manifest.h.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "engine/core/base/result.h"
#include "engine/io/checkpoint/model_form.h"
#include "engine/io/safetensors/checkpoint.h"
#include "engine/io/safetensors/weight_recipe.h"
#include "engine/io/storage/storage.h"
#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {

struct ConvertOptions {
  Storage* storage = nullptr;  // nullptr: PosixStorage
  bool replace = false;        // whether an OUT that exists and is not empty is replaced
  // Called during the conversion with the number of processed bytes of the source, and the total number.
  std::function<void(uint64_t done, uint64_t total)> progress;
};

struct ConvertSummary {
  int64_t tensors = 0;
  int64_t rank_files = 0;
  uint64_t source_bytes = 0;   // of all files of the source
  uint64_t written_bytes = 0;  // of all files in OUT
  uint64_t resumed_bytes = 0;  // of the source, converted by an earlier process
  bool was_there = false;      // OUT already had the content that would be written
};

// Converts a model directory to the sharded checkpoint `out`. `source` must have the bytes of its tensors (not
// Checkpoint::header_only). `plan` must be compiled for the module tree of `source`, or, with `recipes`, for the module
// tree of the program that has these recipes (Program::recipes). With `recipes`, the tensors of the program's model are
// sharded and stored, and the manifest records how the tensors of the model directory are made from the stored tensors.
// With `form`, `source` is not a model directory but any file with tensors (the archive of a program): `form` has the
// other files, and a merge gives a directory with them and with all tensors in model.safetensors (FitForm).
// Errors: those of LayOut and ListModelFiles; kNotSupported: one of the directories is inside the other, or the model
// uses only a part of a tensor of the directory; kMissingTensor: no tensor for a parameter; kTensorMismatch: a tensor
// has another shape than the parameter; kFileNotFound, kFileUnreadable, kWriteFailed.
Result<ConvertSummary> ShardModel(const Checkpoint& source, const CompiledPlan& plan, const std::string& out,
                                  const ConvertOptions& options = {}, const WeightRecipes* recipes = nullptr,
                                  const ModelForm* form = nullptr);

// Merges the sharded checkpoint `sharded` into the model directory `out`. If `sharded` is a step of a training run,
// only the tensors of the model are merged, without the optimizer state (model_form.h). Everything that is read is
// compared with its hash. Errors: those of Manifest::Parse; kCorruptData, with the name, for every tensor or file whose
// bytes differ from those that were written (after 20 errors the rest is not checked); kFileNotFound, kFileUnreadable,
// kWriteFailed; kNotSupported: the checkpoint does not have the form of a model directory.
Result<ConvertSummary> MergeSharded(const std::string& sharded, const std::string& out,
                                    const ConvertOptions& options = {});

}  // namespace moonshard
