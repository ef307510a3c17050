// ShardReader: reads one rank's shard of a tensor from the files of a checkpoint, without the rest of the tensor, into
// memory that the caller owns.
//
// pread was chosen by measurement. The table shows the GB of the shard per second that were read from a 1.2 GB file in
// the page cache into newly allocated memory (2 busy cores; best of two runs):
//                                   all      half the rows   half of each 8 KB row   1 KB of each 8 KB row
//   pread into the destination      1.6      2.0             1.4                     1.2
//   mmap, memcpy, DONTNEED          1.3      1.5             1.6                     1.0
//   pread of full rows, memcpy       -        -              1.3                     0.6
// pread is never slower by more than the noise, the pages of the file do not count as memory of this process, and a
// file that shrinks is an error instead of SIGBUS. Runs of bytes that are too short for one call each are read together
// with the bytes between them. The bytes that follow are prefetched: when the file was not in the page cache, it was
// read in 3 to 5 seconds instead of 16 to 20.
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

// Not thread-safe. Has one file open.
class ShardReader {
 public:
  // `checkpoint` must outlive the reader.
  explicit ShardReader(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  // Reads the sub-block of `tensor` that `dims` selects, row-major and contiguous, into `destination`, which must have
  // ShardBytes bytes. dims[d] are the indices of dim d in the order in which the shard has them (DimShards::of); they
  // must be within the dim. Errors: kFileNotFound; kFileUnreadable (also if the length of the file changed after its
  // header was read); kNotSupported (a shard of a sub-byte dtype begins or ends within a byte, or the checkpoint is
  // header_only()).
  std::optional<Diagnostic> ReadShard(const StoredTensor& tensor, std::span<const std::vector<Interval>> dims,
                                      void* destination);
  // Reads the full tensor: tensor.bytes bytes.
  std::optional<Diagnostic> ReadFull(const StoredTensor& tensor, void* destination);

 private:
  std::optional<Diagnostic> OpenFileOf(const StoredTensor& tensor);

  const Checkpoint& checkpoint_;
  std::optional<File> file_;
  uint32_t open_ = 0;         // index of the file in file_
  std::vector<char> window_;  // for short runs
};

// As ShardReader::ReadShard, from an open file, which must be at least as long as the tensor needs. `window` is memory
// for short runs; the caller keeps it between calls.
std::optional<Diagnostic> ReadShardOf(const File& file, const StoredTensor& tensor,
                                      std::span<const std::vector<Interval>> dims, void* destination,
                                      std::vector<char>& window);

// Returns the full tensor as a shard: every index of every dim.
std::vector<std::vector<Interval>> FullShard(std::span<const int64_t> shape);
// Returns the number of elements along each dim of a shard.
std::vector<int64_t> ShardShape(std::span<const std::vector<Interval>> dims);
// Returns the size of a shard in bytes.
int64_t ShardBytes(DType dtype, std::span<const std::vector<Interval>> dims);

}  // namespace moonshard
