// Manifest: the description of a sharded checkpoint (moonshard.json), as plain data: the mesh and the plan it is
// sharded by, the layout, dtype and full shape of every tensor, which file holds which shard of it, and a hash for
// everything. Enough to merge the tensors again, or to find any shard of any tensor for another mesh
// (sharded_checkpoint.h). The directory:
//
//   moonshard.json            this, sorted, with a hash of itself
//   rank-00000.safetensors    what one rank holds, under the parameters' own names, in local shapes; where the model
//                             has another form than its model directory (stacked experts), in that of the model
//   rank-00001.safetensors    ... one for each rank that holds other shards than the ranks before it
//   config.json, ...          every other file of the model directory, as it is
//   moonshard/FILE.header     the header of each safetensors file of the model directory
//   moonshard/model.safetensors.index.json
//
// The last two only where it was made from a model directory, or a training run knows the model's form (model_form.h):
// with them merging gives that directory back, byte for byte where it was only sharded.
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
// Subdirectory of what belongs to the source's form rather than to its tensors.
inline constexpr const char* kSourceFormDirectory = "moonshard";
inline constexpr const char* kManifestVersion = "1.0";
// Of a model directory: merging makes each of them.
inline constexpr size_t kMostFolders = 4096;

// For each dim the indices that a shard holds, in order, without duplicates, no interval empty, neighbours joined.
using ShardDims = std::vector<std::vector<Interval>>;

struct RankFile {
  std::string name;
  int64_t rank = 0;  // the first world rank that holds these shards
  uint64_t bytes = 0;
  uint64_t header_hash = 0;  // of all before the tensors
};

// A file of the model directory that is kept as it is.
struct KeptFile {
  std::string name;    // within the model directory
  std::string stored;  // within the sharded directory
  uint64_t bytes = 0;
  uint64_t hash = 0;
};

// A safetensors file of the model directory: rebuilt from its header and the tensors.
struct ModelFile {
  std::string name;
  std::string header;  // the file with its header, within the sharded directory
  uint64_t bytes = 0;
  uint64_t header_hash = 0;
};

// Tensors of one shape that are sharded in the same way.
struct ShardLayout {
  std::vector<int64_t> shape;                    // full
  std::map<std::string, std::string> placement;  // mesh axis -> layout, for the axes that shard it
  std::vector<std::optional<ShardDims>> shards;  // by rank file; nothing: the file does not have the tensor

  bool operator==(const ShardLayout&) const = default;
};

struct ShardedTensor {
  std::string name;
  DType dtype = DType::kF32;
  uint32_t layout = 0;               // index into Manifest::layouts
  std::optional<uint64_t> hash;      // of the full tensor's bytes, where one process had all of them
  std::vector<uint64_t> shard_hash;  // by rank file; 0 where the file does not have the tensor
};

// A tensor of the model directory that is stored as part of others: an expert of a stack.
struct MadeTensor {
  WeightRecipe recipe;           // of stored tensors, or of names that are tied to one
  std::optional<uint64_t> hash;  // of its bytes, where it was read
};

struct Manifest {
  MeshShape mesh;
  std::string plan;       // its name
  std::string plan_hash;  // CompiledPlan::Hash
  std::vector<RankFile> rank_files;
  std::vector<ShardLayout> layouts;
  std::vector<ShardedTensor> tensors;          // sorted by name
  std::vector<std::vector<std::string>> ties;  // names of one tensor, the stored one first
  std::vector<KeptFile> kept;                  // sorted by name
  std::vector<std::string> folders;            // of the model directory, sorted
  std::vector<ModelFile> source;               // sorted by name; empty where it was not made from a model directory
  std::map<std::string, MadeTensor> made;      // by name in `source`; of other names the stored tensor has the name
  JsonValue extra = JsonValue::Object();       // the writer's own

  // nullptr where there is none.
  const ShardedTensor* Find(std::string_view name) const;
  const ShardLayout& LayoutOf(const ShardedTensor& tensor) const { return layouts[tensor.layout]; }
  // Index into rank_files of the file that holds this world rank's shards.
  size_t FileOfRank(int64_t rank) const;

  // The text of the file.
  std::string ToText() const;
  // Reads it back. Errors, all that are found: those of ParseJson, and kBadManifest: another major version, a text that
  // was changed since it was written, a field that is missing or of another kind, a file name that leads out of the
  // directory, shards that are outside their tensor, out of order, or do not cover it, files that are not those of the
  // mesh.
  static Result<Manifest> Parse(std::string_view text, const std::string& file_name);
};

// The first of the world ranks that differ from `rank` only along axes that do not shard.
int64_t HolderOf(const MeshShape& mesh, const std::vector<MeshAxis>& sharding, int64_t rank);
// The axes that shard some tensor of these layouts.
std::vector<MeshAxis> ShardingAxes(const std::vector<ShardLayout>& layouts);
// "rank-00000.safetensors".
std::string RankFileName(int64_t rank);

// The shard without empty intervals, neighbours joined: equal for two shards that hold the same.
ShardDims TidyShard(const ShardDims& shard);
// Elements along each dim.
std::vector<int64_t> LocalShapeOf(const ShardDims& shard);

}  // namespace moonshard
