// Chunks: a row-major tensor divided into blocks of contiguous bytes. A chunk is small enough to stay in the cache of a
// core, so that a tensor of any size is converted with little memory. The part of a shard that is in a chunk, its share
// of the chunk, is again contiguous in the shard, and the shares of successive chunks follow each other, because the
// indices of a shard ascend. So every file on either side is read or written from front to back.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/io/checkpoint/manifest.h"
#include "engine/layout/dtype.h"

namespace moonshard {

inline constexpr uint64_t kChunkBytes = uint64_t{1} << 20;

struct Chunk {
  uint64_t begin = 0;  // offset within the tensor
  uint64_t bytes = 0;
  std::vector<int64_t> first;    // first index in each dim; at least one dim
  std::vector<int64_t> lengths;  // number of indices in each dim
};

class ChunkWalk {
 public:
  // Divides the tensor into chunks of at most `target` bytes. Chunks of a sub-byte dtype can be longer, because every
  // chunk must begin at a byte boundary.
  ChunkWalk(std::span<const int64_t> shape, DType dtype, uint64_t target = kChunkBytes);
  // Writes the next chunk to `chunk`. Returns false if there are no more chunks.
  bool Next(Chunk& chunk);

 private:
  std::vector<int64_t> shape_;      // at least one dim
  std::vector<int64_t> unit_bits_;  // bits of one index of each dim
  size_t dim_ = 0;                  // a chunk is a range of indices of this dim, at one index of each dim before it
  int64_t step_ = 1;                // number of indices of dim_ in a chunk
  std::vector<int64_t> at_;
  bool done_ = false;
};

// Returns the share: the part of `shard` that is in `chunk`. Its indices count from the first index of the chunk in
// each dim. A share that has no indices in some dim is empty.
ShardDims ShardInChunk(const ShardDims& shard, const Chunk& chunk);

// OneRunOf, TakeFromChunk and PutIntoChunk require a share that is not empty. A share of a sub-byte dtype must begin
// and end at byte boundaries (ShardsAtBytes).
//
// Returns the offset of the share in the bytes of the chunk if the share is one contiguous run of them, else nullopt.
std::optional<uint64_t> OneRunOf(const Chunk& chunk, DType dtype, const ShardDims& in_chunk);
// Returns a pointer to the share of the chunk's bytes `bytes`: a pointer into `bytes` if the share is one run, else
// `to`, into which the share is copied (ShareBytes bytes).
const char* TakeFromChunk(const Chunk& chunk, DType dtype, const ShardDims& in_chunk, const char* bytes, char* to);
// Copies the share from `from` (ShareBytes bytes) to its positions in the chunk's bytes `bytes`.
void PutIntoChunk(const Chunk& chunk, DType dtype, const ShardDims& in_chunk, const char* from, char* bytes);
// Returns the size of the share in bytes; 0 if it is empty.
uint64_t ShareBytes(DType dtype, const ShardDims& in_chunk);

// Returns whether the shard begins and ends at a byte boundary in every chunk.
bool ShardsAtBytes(std::span<const int64_t> shape, DType dtype, const ShardDims& shard);

}  // namespace moonshard
