// Chunks: a row-major tensor as blocks of neighbouring bytes, each small enough to stay in a core's cache, so that a
// tensor of any size passes through little memory. A shard's share of a chunk is again neighbouring bytes of the shard,
// and follows on its share of the chunk before: shards hold their indices in order. So every file on either side is
// read or written from front to back.
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
  std::vector<int64_t> first;    // index of each dim at which it begins; one dim at least
  std::vector<int64_t> lengths;  // indices of each dim
};

class ChunkWalk {
 public:
  // Chunks of about `target` bytes: more only where elements of less than a byte would be split within one.
  ChunkWalk(std::span<const int64_t> shape, DType dtype, uint64_t target = kChunkBytes);
  // The next chunk; false behind the last.
  bool Next(Chunk& chunk);

 private:
  std::vector<int64_t> shape_;      // of one dim at least
  std::vector<int64_t> unit_bits_;  // of one index of each dim
  size_t dim_ = 0;                  // a chunk is a range of this dim, of one index of those before
  int64_t step_ = 1;                // indices of that dim
  std::vector<int64_t> at_;
  bool done_ = false;
};

// What a shard has of a chunk, counting each dim's indices from the chunk's begin. Empty in some dim: nothing.
ShardDims ShardInChunk(const ShardDims& shard, const Chunk& chunk);

// What follows takes a share that is not empty and, in a sub-byte dtype, begins and ends at bytes (ShardsAtBytes).
//
// Where in the chunk's bytes the share is, if it is one run of them.
std::optional<uint64_t> OneRunOf(const Chunk& chunk, DType dtype, const ShardDims& in_chunk);
// The share of the chunk's bytes: a pointer into `bytes` where it is one run, else to a copy in `to`.
const char* TakeFromChunk(const Chunk& chunk, DType dtype, const ShardDims& in_chunk, const char* bytes, char* to);
// The share at `from` to its places in the chunk's bytes.
void PutIntoChunk(const Chunk& chunk, DType dtype, const ShardDims& in_chunk, const char* from, char* bytes);
// Bytes of the share; 0 where it is empty.
uint64_t ShareBytes(DType dtype, const ShardDims& in_chunk);

// Whether the shard begins and ends at a byte in every chunk.
bool ShardsAtBytes(std::span<const int64_t> shape, DType dtype, const ShardDims& shard);

}  // namespace moonshard
