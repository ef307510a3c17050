// ShardedCheckpoint: a sharded directory open for reading: where the bytes of any shard of any tensor are, for any
// mesh, and the bytes. Reads the manifest, then of each rank file its header when the file is first needed.
// Stage before: manifest.h. Used by merge.cc, and to load onto another mesh than the one that saved.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/base/result.h"
#include "engine/io/checkpoint/convert_files.h"
#include "engine/io/checkpoint/manifest.h"

namespace moonshard {

// Bytes that are contiguous both in a rank file and in the wanted shard.
struct ByteRange {
  size_t file = 0;      // index into Manifest::rank_files
  uint64_t offset = 0;  // in the file
  uint64_t bytes = 0;
  uint64_t to = 0;  // offset in the shard, row-major
  bool operator==(const ByteRange&) const = default;
};

// A shard to read is given as ShardDims. For a rank's local tensor under a placement these are TidyShard of
// LocalIntervals.
class ShardedCheckpoint {
 public:
  // Errors: kFileNotFound (no manifest: not a sharded checkpoint), and those of Manifest::Parse.
  static Result<ShardedCheckpoint> Open(const std::string& folder);

  const Manifest& manifest() const { return *manifest_; }
  const std::string& folder() const { return folder_; }

  // By tensor of the manifest: where its shard begins in a rank file. Errors: kFileNotFound, kFileUnreadable;
  // kCorruptData: another length or header than was written; kBadManifest: tensors that do not fit the manifest.
  Result<const std::vector<uint64_t>*> Offsets(size_t file);

  // The byte ranges that make up a shard of a tensor of the manifest, from as few files as possible. Errors: those of
  // Offsets; kNotSupported: a shard that begins or ends within a byte.
  Result<std::vector<ByteRange>> Locate(const ShardedTensor& tensor, const ShardDims& wanted);

  // Reads the shard, row-major, into `destination`, which has ShardBytes bytes. A shard that a file has in exactly this
  // form is compared with its hash (kCorruptData); one that is assembled from others is not. Needs a buffer of at most
  // the size of the shard, besides `destination`. Errors: as Locate.
  Failure ReadShard(const ShardedTensor& tensor, const ShardDims& wanted, void* destination);

  // Compares the shard of a tensor in a rank file, if the file has one, with its hash; needs little memory. Errors:
  // kCorruptData, and those of Offsets.
  Failure CheckShard(const ShardedTensor& tensor, size_t file);

 private:
  ShardedCheckpoint() = default;

  std::string folder_;
  std::unique_ptr<const Manifest> manifest_;
  std::optional<InputFiles> files_;
  std::vector<std::unique_ptr<std::vector<uint64_t>>> offsets_;  // by rank file
  std::vector<char> window_;
  std::vector<char> block_;
};

// kCorruptData about a tensor in a file, or, with no tensor, about the file.
Diagnostic Corrupt(const std::string& file, const std::string& tensor, uint64_t found, uint64_t written);

}  // namespace moonshard
