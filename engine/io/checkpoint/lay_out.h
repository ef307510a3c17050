// LayOut: assigns every shard of every tensor to a file of a sharded checkpoint and to an offset in this file. It
// computes the manifest and the headers of the files, but reads and writes no tensor.
// Stages before: the placements of a compiled plan and the shapes of the tensors, from headers or a live model. Stages
// after: shard.cc; during training rank_file.h, where every rank computes the same result.
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
  Placement placement;         // of a compiled plan, so it fits the shape
};

struct LaidOut {
  // Mesh, layouts, tensors and rank files. The hashes of tensors and shards are unset; those of the headers of rank
  // files are set. The caller sets the plan and the other files.
  Manifest manifest;
  std::vector<uint32_t> order;               // for each given tensor: its index in manifest.tensors
  std::vector<std::vector<uint64_t>> begin;  // [rank file][tensor of the manifest]: offset in the file, bytes
};

// If several files could contain the same shard of a tensor (replicas): the files that contain the shard.
enum class Replicas : uint8_t {
  kAll,    // all of these files: the file of a rank has all shards of the rank
  kFirst,  // only the first file: no shard is written twice
};

// Assigns shards to files and offsets. Ranks that differ only along mesh axes that shard no tensor share a file. Within
// a file, tensors with wider dtypes come first; tensors with equally wide dtypes keep the given order. Errors:
// kNotSupported: a shard of a sub-byte dtype begins or ends within a byte; kBadSafetensors: two tensors have the same
// name; kWriteFailed: those of WriteHeader.
Result<LaidOut> LayOut(const std::vector<PlacedTensor>& tensors, const MeshShape& mesh,
                       Replicas replicas = Replicas::kAll);

// Returns the header of a rank file; the bytes of its tensors follow the header. Does not fail for a result of LayOut.
std::string HeaderOf(const LaidOut& laid_out, size_t file);

}  // namespace moonshard
