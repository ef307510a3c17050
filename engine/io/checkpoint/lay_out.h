// LayOut: which file of a sharded checkpoint gets which shard of every tensor, and where in it; all but the bytes.
// Stages before: a compiled plan's placements and the tensors' shapes, from headers or a live model. Stage after:
// shard.cc, or rank_file.h in the middle of training, with the same result on every rank.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/core/base/result.h"
#include "engine/io/checkpoint/manifest.h"
#include "engine/io/safetensors/writer.h"
#include "engine/layout/layout.h"

namespace moonshard {

struct PlacedTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // full
  Placement placement;         // compiled: it fits the shape
};

struct LaidOut {
  // Mesh, layouts, tensors and rank files; all hashes 0, plan and other files left to the caller.
  Manifest manifest;
  std::vector<uint32_t> order;               // of the tensors as they were given: index into manifest.tensors
  std::vector<std::vector<uint64_t>> begin;  // by rank file, by tensor of the manifest: offset in the file
};

// Which of the files that belong to ranks with the same shard of a tensor have it.
enum class Replicas : uint8_t {
  kAll,    // all of them: a rank's file has everything that the rank holds
  kFirst,  // the first: nothing is written twice
};

// Ranks that differ only along axes that shard nothing share a file. In a file tensors of wider dtypes come first,
// equally wide ones in the given order. Errors: kNotSupported, a shard of a sub-byte dtype that begins or ends within a
// byte; kBadSafetensors: two tensors of one name; kWriteFailed: as WriteHeader.
Result<LaidOut> LayOut(const std::vector<PlacedTensor>& tensors, const MeshShape& mesh,
                       Replicas replicas = Replicas::kAll);

// The header of a rank file; its tensors begin behind it. Cannot fail after LayOut.
std::string HeaderOf(const LaidOut& laid_out, size_t file);

}  // namespace moonshard
