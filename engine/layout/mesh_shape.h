// MeshShape: the named mesh axes and their sizes, without processes or devices. Ranks are numbered row-major over the
// axes in their fixed order, with tp innermost: rank = ... * tp + tp_rank.
// Stage before: the command line or C++. Stage after: dsl/language/eval (a plan may read sizes), compile, mesh
// (DeviceMesh).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/base/result.h"

namespace moonshard {

// The axes a mesh can have, outermost first. An axis that is not given has size 1.
enum class MeshAxis : uint8_t { kPp, kDpReplicate, kDpShard, kCp, kTp };
inline constexpr size_t kMeshAxisCount = 5;
inline constexpr std::array<MeshAxis, kMeshAxisCount> kMeshAxes = {MeshAxis::kPp, MeshAxis::kDpReplicate,
                                                                   MeshAxis::kDpShard, MeshAxis::kCp, MeshAxis::kTp};

// The axes along which ranks take other rows of the batch, outermost first.
inline constexpr std::array<MeshAxis, 2> kDataAxes = {MeshAxis::kDpReplicate, MeshAxis::kDpShard};
constexpr bool IsDataAxis(MeshAxis axis) { return axis == MeshAxis::kDpReplicate || axis == MeshAxis::kDpShard; }

// "pp", "dp_replicate", "dp_shard", "cp", "tp".
const char* ToString(MeshAxis axis);
// Also accepts "dp" for dp_shard. Returns nullopt for any other name.
std::optional<MeshAxis> MeshAxisFromName(std::string_view name);
// Returns the five names, for messages.
std::span<const std::string> MeshAxisNames();

// The largest number of ranks of a mesh. The limit ensures that passes that visit every rank take at most seconds.
inline constexpr int64_t kMostRanks = int64_t{1} << 20;

class MeshShape {
 public:
  MeshShape() = default;  // one rank

  // Makes a mesh from axes in any order. Errors (kUnknownAxis, kBadMesh): an unknown or repeated name, a size below 1,
  // more than kMostRanks ranks.
  static Result<MeshShape> Make(std::span<const std::pair<std::string, int64_t>> axes);
  // Parses "tp=2,dp=4"; an empty text is a mesh of one rank. Errors: those of Make; kBadMesh for a text of another
  // form.
  static Result<MeshShape> Parse(std::string_view text);

  int64_t size(MeshAxis axis) const { return sizes_[static_cast<size_t>(axis)]; }
  int64_t world_size() const;
  // Returns the coordinate of `rank` along `axis`. Requires 0 <= rank < world_size().
  int64_t Coordinate(int64_t rank, MeshAxis axis) const;
  // The product of the sizes of the data axes, and the number of `rank` among the parts of a batch: its coordinates
  // along the data axes, row-major.
  int64_t data_ranks() const;
  int64_t DataCoordinate(int64_t rank) const;
  // Returns the ranks of the process group of `rank` along `axis`: those whose other coordinates are equal, in the
  // order of their coordinate along `axis`, including `rank`.
  std::vector<int64_t> GroupOf(int64_t rank, MeshAxis axis) const;
  // Returns "dp_shard=4,tp=2": the axes with a size above 1 in their fixed order; "tp=1" for a single rank.
  std::string ToString() const;
  bool operator==(const MeshShape&) const = default;

 private:
  std::array<int64_t, kMeshAxisCount> sizes_ = {1, 1, 1, 1, 1};
};

}  // namespace moonshard
