// RankFileWriter: writes one rank's file of a checkpoint from memory, during training (training_state). Each rank that
// has a file (the first of the ranks with the same shards, Manifest::FileOfRank) writes its own file into a common
// staging directory. The rank then sends the hashes that Finish returns to the rank that writes the manifest and
// commits the directory.
// Stage before: lay_out.h, with the same result on every rank. Stage after: Manifest::ToText, StagingDirectory::Commit.
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
  // Creates the file manifest.rank_files[file] in the directory `folder` and writes its header. `storage` and
  // `laid_out` must outlive the writer. Errors: kWriteFailed.
  static Result<RankFileWriter> Create(Storage& storage, const std::string& folder, const LaidOut& laid_out,
                                       size_t file);

  // Writes the full shard of manifest.tensors[tensor], row-major; `bytes` must be the size of the shard. Must be called
  // once for each tensor of the file, in any order. Errors: kWriteFailed.
  Failure Write(size_t tensor, const void* data, uint64_t bytes);
  // Syncs the file. Returns for each tensor of the manifest the hash of its shard, for ShardedTensor::shard_hash[file];
  // 0 if the file does not have the tensor. Errors: kWriteFailed.
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
