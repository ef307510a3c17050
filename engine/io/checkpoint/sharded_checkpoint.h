// ShardedCheckpoint: a sharded checkpoint open for reading. It locates and reads any shard of any tensor, for any mesh.
// Open reads the manifest; the header of a rank file is read when the file is first needed.
// Stage before: manifest.h. Used by merge.cc, and to load on a mesh that differs from the mesh of the save.
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

// A shard to read is given as ShardDims. The ShardDims of a rank's local tensor with a given placement are
// TidyShard(LocalIntervals(...)).
class ShardedCheckpoint {
 public:
  // Opens the sharded checkpoint in the directory `folder`. Errors: kFileNotFound: no manifest, so this is not a
  // sharded checkpoint; those of Manifest::Parse.
  static Result<ShardedCheckpoint> Open(const std::string& folder);

  const Manifest& manifest() const { return *manifest_; }
  const std::string& folder() const { return folder_; }

  // Returns for each tensor of the manifest the offset of its shard in rank file `file`, in bytes; 0 if the file does
  // not have the tensor. Errors: kFileNotFound, kFileUnreadable; kCorruptData: the length or the header of the file is
  // not the one that was written; kBadManifest: the tensors in the file differ from the manifest.
  Result<const std::vector<uint64_t>*> Offsets(size_t file);

  // Returns the byte ranges that make up a shard of a tensor of the manifest. All ranges are in one file if one stored
  // shard contains the wanted shard. Errors: those of Offsets; kNotSupported: a range begins or ends within a byte.
  Result<std::vector<ByteRange>> Locate(const ShardedTensor& tensor, const ShardDims& wanted);

  // Reads the shard, row-major, into `destination`, which must have ShardBytes bytes. If a file stores exactly this
  // shard, the bytes are compared with their hash (kCorruptData); a shard that is assembled from other shards is not
  // compared. Needs a buffer of at most the size of the shard, besides `destination`. Errors: those of Locate, and
  // kFileUnreadable.
  Failure ReadShard(const ShardedTensor& tensor, const ShardDims& wanted, void* destination);

  // Compares the shard of a tensor in a rank file with its hash, with little memory; does nothing if the file does not
  // have the tensor. Errors: kCorruptData, and those of Offsets.
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

// Returns kCorruptData for a tensor in a file, or for the file if `tensor` is empty. `found`: the XXH3 hash of the
// bytes that were read; `written`: the hash of the bytes that were written.
Diagnostic Corrupt(const std::string& file, const std::string& tensor, uint64_t found, uint64_t written);

}  // namespace moonshard
