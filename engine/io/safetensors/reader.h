// ShardReader: the bytes of one rank's shard of a tensor, and no others, from a checkpoint's files into memory that the
// caller owns.
//
// How the bytes travel was measured, for a 1.2 GB file in the page cache, as GB of shard a second into fresh memory
// (2 busy cores; best of two):      all      half the rows   half of each 8 KB row   1 KB of each 8 KB row
//   pread into the destination      1.6      2.0             1.4                     1.2
//   mmap, memcpy, DONTNEED          1.3      1.5             1.6                     1.0
//   pread of full rows, memcpy       -        -              1.3                     0.6
// pread never loses by more than the noise, its pages do not count as this process's memory, and a file that shrinks
// is an error instead of SIGBUS. Runs too short for a call each are read together with the bytes between them. What
// follows is fetched ahead: the same file, not in the page cache, was read in 3 to 5 seconds instead of 16 to 20.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/core/base/result.h"
#include "engine/io/safetensors/checkpoint.h"
#include "engine/io/storage/file.h"
#include "engine/layout/shards.h"

namespace moonshard {

// Reads for one thread at a time. Holds one file open.
class ShardReader {
 public:
  // `checkpoint` must outlive the reader.
  explicit ShardReader(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  // The sub-block of `tensor` that `dims` selects, row-major and contiguous, to `destination`. dims[d] are the
  // indices of dim d in the order in which the shard holds them (DimShards::of); they lie within the dim. The
  // destination has ShardBytes bytes. Errors: kFileNotFound, kFileUnreadable (also where the
  // file is not the one whose header was read), kNotSupported (a shard of a sub-byte dtype that begins or ends within
  // a byte, or a checkpoint of headers only).
  std::optional<Diagnostic> ReadShard(const StoredTensor& tensor, std::span<const std::vector<Interval>> dims,
                                      void* destination);
  // The full tensor: tensor.bytes bytes.
  std::optional<Diagnostic> ReadFull(const StoredTensor& tensor, void* destination);

 private:
  std::optional<Diagnostic> OpenFileOf(const StoredTensor& tensor);

  const Checkpoint& checkpoint_;
  std::optional<File> file_;
  uint32_t open_ = 0;         // which file file_ is
  std::vector<char> window_;  // for short runs
};

// As ShardReader::ReadShard, from a file that is open and at least as long as the tensor needs. `window` is memory for
// short runs, kept between calls.
std::optional<Diagnostic> ReadShardOf(const File& file, const StoredTensor& tensor,
                                      std::span<const std::vector<Interval>> dims, void* destination,
                                      std::vector<char>& window);

// Every index of every dim: the full tensor as a shard.
std::vector<std::vector<Interval>> FullShard(std::span<const int64_t> shape);
// Elements along each dim of a shard.
std::vector<int64_t> ShardShape(std::span<const std::vector<Interval>> dims);
int64_t ShardBytes(DType dtype, std::span<const std::vector<Interval>> dims);

}  // namespace moonshard
