// RankFileWriter: one rank's file of a checkpoint that is written from memory, in the middle of training
// (training_state): every rank (the first of those that hold the same, Manifest::FileOfRank) writes its own into one
// staging directory, and sends the hashes that Finish returns to the rank that writes the manifest and commits.
// Stage before: lay_out.h, the same on every rank. Stage after: Manifest::ToText, StagingDirectory::Commit.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/core/base/result.h"
#include "engine/io/checkpoint/lay_out.h"
#include "engine/io/storage/storage.h"

namespace moonshard {

class RankFileWriter {
 public:
  // Writes the header of manifest.rank_files[file] into `directory`. Both references outlive the writer. Errors:
  // kWriteFailed.
  static Result<RankFileWriter> Create(Storage& storage, const std::string& folder, const LaidOut& laid_out,
                                       size_t file);

  // The full shard of manifest.tensors[tensor]: `bytes` bytes, row-major, as many as the shard has. In any order, each
  // tensor that the file has once. Errors: kWriteFailed.
  Failure Write(size_t tensor, const void* data, uint64_t bytes);
  // Syncs the file. By tensor of the manifest: the hash of its shard, for ShardedTensor::shard_hash[file]; 0 where the
  // file does not have it. Errors: kWriteFailed.
  Result<std::vector<uint64_t>> Finish();

 private:
  RankFileWriter(const LaidOut& laid_out, size_t file) : laid_out_(&laid_out), file_index_(file) {}

  const LaidOut* laid_out_;
  size_t file_index_;
  std::unique_ptr<WritableFile> file_;
  std::vector<uint64_t> hashes_;
  std::vector<bool> written_;
};

}  // namespace moonshard
