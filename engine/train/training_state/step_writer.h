// StepJob: a step that is being written, with all data that the write needs, so that it does not use the model. Every
// rank writes its own file into the staging directory that rank 0 has opened, and a note file with the hashes of its
// shards and its generator states; rank 0 writes the other files and commits the directory.
// Part of training_checkpoints.h. Stages before: saved_state.h, LayOut. Communicates with other ranks only through
// files.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/core/base/result.h"
#include "engine/io/checkpoint/adapter_files.h"
#include "engine/io/checkpoint/lay_out.h"
#include "engine/io/checkpoint/model_form.h"
#include "engine/io/checkpoint/run_directory.h"
#include "engine/io/checkpoint/training_record.h"
#include "engine/io/storage/staging.h"

namespace moonshard {

struct StepJob {
  int64_t step = 0;
  int64_t rank = 0;
  std::string place;  // the step's directory
  std::string probe;  // a file in the run directory that all ranks must see; "": none
  LaidOut laid_out;   // rank 0 completes its manifest
  // By tensor of the manifest: this rank's shard, on any device; undefined if this rank does not write the shard.
  std::vector<at::Tensor> shards;
  std::map<std::string, std::string> generators;  // state by name, as bytes

  // Used only on rank 0.
  std::optional<StagingDirectory> staging;
  TrainingRecord record;
  std::vector<FormTensor> form_tensors;  // without the factors of adapters
  AdapterFiles adapter;
  std::shared_ptr<const ModelForm> form;
  int64_t keep = 0;  // TrainingCheckpointOptions::keep
};

// Returns the index into rank_files of the file that `rank` writes; nullopt if another rank with the same shards writes
// the file.
std::optional<size_t> FileToWrite(const Manifest& manifest, int64_t rank);

// Writes this rank's file, and its note file outside of the directory that is committed. Errors: kWriteFailed.
Diagnostics WriteRankPart(Storage& storage, const StepJob& job);

// Completes the step on rank 0 after every rank has written its part: writes the other files, commits the directory,
// makes `latest` name the step and removes old steps. Returns warnings. Errors: kWriteFailed; kRunTaken; and
// kFileNotFound, kFileUnreadable, kBadJson or kCorruptData for the note file of a rank.
Diagnostics CompleteStep(Storage& storage, RunDirectory& run, StepJob& job);

// Abandons a step on rank 0: removes its staging directory. Does nothing on other ranks.
void AbandonStep(Storage& storage, StepJob& job);

// Returns the name of a rank's generator in kRandomFile: "rank_00003.cpu".
std::string RandomName(int64_t rank, const std::string& generator);

}  // namespace moonshard
