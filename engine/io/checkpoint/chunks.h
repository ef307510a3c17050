// Chunks: a row-major tensor divided into blocks of contiguous bytes. A conversion processes one chunk at a time. A
// chunk fits into the cache of a CPU core, so a tensor of any size is converted with little memory. The part of a shard
// that is in a chunk is called the share of the chunk. A share is contiguous in the shard, and the shares of successive
// chunks follow each other, because the indices of a shard ascend. Therefore a conversion reads and writes every file
// from front to back.
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
  size_t dim_ = 0;                  // a chunk: a range of this dim, one index of each dim before, all of each dim after
  int64_t step_ = 1;                // number of indices of dim_ in a chunk
  std::vector<int64_t> at_;
  bool done_ = false;
};

// Returns the share: the part of `shard` that is in `chunk`. The indices of the share are relative to chunk.first. A
// share that has no indices in some dim is empty.
ShardDims ShardInChunk(const ShardDims& shard, const Chunk& chunk);

// OneRunOf, TakeFromChunk and PutIntoChunk require a share that is not empty. A share of a sub-byte dtype must begin
// and end at byte boundaries (ShardsAtBytes).
//
// Returns the offset of the share in the bytes of the chunk if the share is contiguous there, else nullopt.
std::optional<uint64_t> OneRunOf(const Chunk& chunk, DType dtype, const ShardDims& in_chunk);
// Returns a pointer to the bytes of the share. `bytes`: the bytes of the chunk. If the share is contiguous in `bytes`,
// the pointer is into `bytes`; otherwise the share is copied to `to` (ShareBytes bytes) and `to` is returned.
const char* TakeFromChunk(const Chunk& chunk, DType dtype, const ShardDims& in_chunk, const char* bytes, char* to);
// Copies the share from `from` (ShareBytes bytes) to its positions in `bytes`, the bytes of the chunk.
void PutIntoChunk(const Chunk& chunk, DType dtype, const ShardDims& in_chunk, const char* from, char* bytes);
// Returns the size of the share in bytes; 0 if it is empty.
uint64_t ShareBytes(DType dtype, const ShardDims& in_chunk);

// Returns whether the shard begins and ends at a byte boundary in every chunk.
bool ShardsAtBytes(std::span<const int64_t> shape, DType dtype, const ShardDims& shard);

}  // namespace moonshard
