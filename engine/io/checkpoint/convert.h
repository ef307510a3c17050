// ShardModel and MergeSharded: a model directory in Hugging Face form -> one safetensors file per rank, and back to the
// same directory, byte for byte. Streams: buffers of a few megabytes, independent of the sizes of tensors, and the
// metadata of all tensors. Both write through storage/staging.h: OUT is complete or unchanged, and a second call after
// a kill resumes the first one. If OUT already has the content that would be written (the source is read and hashed to
// find out), it is unchanged.
// Stages before: safetensors (Checkpoint), compile (CompiledPlan). Content of the directory: manifest.h.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "engine/core/base/result.h"
#include "engine/io/safetensors/checkpoint.h"
#include "engine/io/safetensors/weight_recipe.h"
#include "engine/io/storage/storage.h"
#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {

struct ConvertOptions {
  Storage* storage = nullptr;  // nullptr: PosixStorage
  bool replace = false;        // whether OUT may hold something already, which is gone afterwards
  // Called now and then with the source's bytes that are done and all of them.
  std::function<void(uint64_t done, uint64_t total)> progress;
};

struct ConvertSummary {
  int64_t tensors = 0;
  int64_t rank_files = 0;
  uint64_t source_bytes = 0;   // read, or to be read
  uint64_t written_bytes = 0;  // of all files in OUT
  uint64_t resumed_bytes = 0;  // of the source, found done by an earlier process
  bool was_there = false;      // OUT already was what would be written, and is left as it was
};

// MODEL -> OUT. `source` must be opened with its data, and `plan` compiled for its tree, or for that of a program with
// these `recipes` (Program::recipes): then the tensors of the program's model are sharded and stored, and the manifest
// records how the tensors of the directory are made from them. Errors: kNotSupported (see LayOut, ListModelFiles; a
// directory inside the other; a tensor of the directory that the model has a part of), kMissingTensor (a parameter that
// nothing makes), kTensorMismatch, kFileUnreadable, kWriteFailed.
Result<ConvertSummary> ShardModel(const Checkpoint& source, const CompiledPlan& plan, const std::string& out,
                                  const ConvertOptions& options = {}, const WeightRecipes* recipes = nullptr);

// SHARDED -> OUT; of a step of a training run the model's tensors alone (model_form.h). Everything that is read is
// compared with its hash. Errors: those of Manifest::Parse; kCorruptData: for
// every tensor or file whose bytes are not those that were written, by name; kFileNotFound, kFileUnreadable,
// kWriteFailed; kNotSupported: a checkpoint without a model's form.
Result<ConvertSummary> MergeSharded(const std::string& sharded, const std::string& out,
                                    const ConvertOptions& options = {});

}  // namespace moonshard
