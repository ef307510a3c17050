// StepJob: a step that is being written, with everything that it needs: the model is not used any more.
// Every rank writes its own file into the staging directory that rank 0 has opened, and a note about it; rank 0 writes
// the rest and commits the directory.
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
  LaidOut laid_out;   // rank 0 completes its manifest
  // By tensor of the manifest: this rank's shard, on any device; undefined where this rank does not write it.
  std::vector<at::Tensor> shards;
  std::map<std::string, std::string> generators;  // state by name, as bytes

  // Rank 0's.
  std::optional<StagingDirectory> staging;
  TrainingRecord record;
  std::vector<FormTensor> form_tensors;
  std::shared_ptr<const ModelForm> form;
  int64_t keep = 0;
};

// Index into rank_files of the file that this rank writes; nothing where another rank with the same shards does.
std::optional<size_t> FileToWrite(const Manifest& manifest, int64_t rank);

// This rank's part: its file, and its note beside the directory. Errors: kWriteFailed.
Diagnostics WriteRankPart(Storage& storage, const StepJob& job);

// Rank 0's, after every rank has written its part. When it returns without an error the step is in its place and
// `latest` names it. Returns warnings. Errors: kWriteFailed; kRunTaken; and of a note that a rank wrote
// kFileUnreadable, kBadJson and kCorruptData.
Diagnostics CompleteStep(Storage& storage, RunDirectory& run, StepJob& job);

// Abandons a step: removes what is written of it.
void AbandonStep(Storage& storage, StepJob& job);

// A rank's generators in kRandomFile, and back: "rank_00003.cpu".
std::string RandomName(int64_t rank, const std::string& generator);

}  // namespace moonshard
