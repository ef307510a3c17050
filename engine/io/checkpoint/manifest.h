// Manifest: the description of a sharded checkpoint (moonshard.json), as plain data. It has the mesh and the plan; the
// layout, dtype and full shape of every tensor; the file that contains each shard; and the hashes of all shards and
// files. The manifest is sufficient to merge the tensors, or to find any shard of any tensor for another mesh
// (sharded_checkpoint.h). The directory of a sharded checkpoint:
//
//   moonshard.json            the manifest, with sorted keys and a hash of itself
//   rank-00000.safetensors    the shards of one rank, under the names of the parameters, in local shapes. The tensors
//                             are those of the model, which may have another form than those of the model directory
//                             (stacked experts)
//   rank-00001.safetensors    ... one file for each rank whose shards differ from those of all lower ranks
//   config.json, ...          every other file of the model directory, unchanged
//   moonshard/FILE.header     the header of each safetensors file of the model directory
//   moonshard/model.safetensors.index.json    the index of the model directory, if it has one
//
// The last two exist only if the checkpoint was made from a model directory, or by a training run that has the form of
// a model directory (model_form.h). From these files and the tensors, merging restores the model directory, byte for
// byte unless training changed the tensors.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/base/json.h"
#include "engine/core/base/result.h"
#include "engine/io/safetensors/weight_recipe.h"
#include "engine/layout/dtype.h"
#include "engine/layout/mesh_shape.h"
#include "engine/layout/shards.h"

namespace moonshard {

inline constexpr const char* kManifestFile = "moonshard.json";
// Subdirectory for the headers and the index of the model directory, and for the states of the random number generators
// of a training run.
inline constexpr const char* kSourceFormDirectory = "moonshard";
inline constexpr const char* kManifestVersion = "1.0";
// Largest number of directories within a model directory. Merging makes every directory that the manifest lists; the
// limit bounds what an untrusted manifest can make.
inline constexpr size_t kMostFolders = 4096;

// The indices of a shard: for each dim the intervals, in ascending order. They are not empty and do not overlap, and
// adjacent intervals are joined.
using ShardDims = std::vector<std::vector<Interval>>;

struct RankFile {
  std::string name;
  int64_t rank = 0;  // the lowest world rank that has these shards
  uint64_t bytes = 0;
  uint64_t header_hash = 0;  // of all bytes before the tensors
};

// A file of the model directory that is copied unchanged.
struct KeptFile {
  std::string name;    // within the model directory
  std::string stored;  // within the sharded directory
  uint64_t bytes = 0;
  uint64_t hash = 0;
};

// A safetensors file of the model directory. Merging rebuilds the file from its header and the tensors.
struct ModelFile {
  std::string name;
  std::string header;  // name of the file with its header, within the sharded directory
  uint64_t bytes = 0;
  uint64_t header_hash = 0;
};

// The layout of all tensors that have the same shape and are sharded in the same way.
struct ShardLayout {
  std::vector<int64_t> shape;                    // full
  std::map<std::string, std::string> placement;  // mesh axis -> layout, for the axes that shard the tensor
  std::vector<std::optional<ShardDims>> shards;  // by rank file; nullopt: the file does not have the tensor

  bool operator==(const ShardLayout&) const = default;
};

struct ShardedTensor {
  std::string name;
  DType dtype = DType::kF32;
  uint32_t layout = 0;               // index into Manifest::layouts
  std::optional<uint64_t> hash;      // of the full tensor's bytes, if one process had all bytes
  std::vector<uint64_t> shard_hash;  // by rank file; 0 if the file does not have the tensor
};

// A tensor of the model directory that is stored in another form: as a part of a stored tensor (one expert of a stack),
// or as several stored tensors (a fused projection).
struct MadeTensor {
  WeightRecipe recipe;           // makes the tensor from stored tensors, or from names that are tied to these
  std::optional<uint64_t> hash;  // of its bytes, if they were read
};

struct Manifest {
  MeshShape mesh;
  std::string plan;       // name of the plan
  std::string plan_hash;  // CompiledPlan::Hash
  std::vector<RankFile> rank_files;
  std::vector<ShardLayout> layouts;
  std::vector<ShardedTensor> tensors;          // sorted by name
  std::vector<std::vector<std::string>> ties;  // names of the same tensor, the stored name first
  std::vector<KeptFile> kept;                  // sorted by name
  std::vector<std::string> folders;            // directories within the model directory, sorted
  std::vector<ModelFile> source;               // sorted by name; empty: cannot be merged into a model directory
  std::map<std::string, MadeTensor> made;      // by name in the model directory; other tensors are stored unchanged
  JsonValue extra = JsonValue::Object();       // data of the writer (training_record.h)

  // Returns nullptr if there is no such tensor.
  const ShardedTensor* Find(std::string_view name) const;
  const ShardLayout& LayoutOf(const ShardedTensor& tensor) const { return layouts[tensor.layout]; }
  // Returns the index into rank_files of the file of a world rank. With Replicas::kFirst, some shards of the rank may
  // be only in an earlier file.
  size_t FileOfRank(int64_t rank) const;

  // Returns the text of moonshard.json.
  std::string ToText() const;
  // Parses the text of moonshard.json; `file_name` is the name of the file in messages. Errors, all that are found:
  // those of ParseJson and MeshShape::Make; kBadManifest: another major version, a text that was changed since it was
  // written, a field that is missing or has the wrong type, a file name that leads out of the directory, shards that
  // are out of order, are outside their tensor or do not cover the tensor, rank files that do not match the mesh.
  static Result<Manifest> Parse(std::string_view text, const std::string& file_name);
};

// Returns the lowest world rank whose coordinates equal those of `rank` along all mesh axes in `sharding`.
int64_t HolderOf(const MeshShape& mesh, const std::vector<MeshAxis>& sharding, int64_t rank);
// Returns the mesh axes that shard a tensor in at least one of these layouts.
std::vector<MeshAxis> ShardingAxes(const std::vector<ShardLayout>& layouts);
// Returns the name of a rank file: "rank-00000.safetensors".
std::string RankFileName(int64_t rank);

// Returns the shard without empty intervals and with neighbours joined. Two shards of the same indices give the same
// result.
ShardDims TidyShard(const ShardDims& shard);
// Returns the number of elements along each dim.
std::vector<int64_t> LocalShapeOf(const ShardDims& shard);

}  // namespace moonshard
