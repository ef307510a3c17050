// MeshShape: the named mesh axes and their sizes, without processes or devices. Ranks are numbered row-major over the
// axes in their fixed order, with tp innermost: rank = ... * tp + tp_rank.
// The axis cp may be two factors, "cp=2x4", for a context parallelism that is a ring and an exchange of heads together
// (plan/compile/context_parallel.h): keys and values travel between the 2 groups of 4 consecutive ranks of cp, and the
// ranks of a group exchange heads. It is one axis of 8 ranks to everything else.
// Stage before: the command line or C++. Stage after: dsl/language/eval (a plan may read sizes), compile, mesh
// (DeviceMesh).
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/base/result.h"

namespace moonshard {

// The axes a mesh can have, outermost first. An axis that is not given has size 1.
enum class MeshAxis : uint8_t { kPp, kDpReplicate, kDpShard, kEp, kCp, kTp };
inline constexpr size_t kMeshAxisCount = 6;
inline constexpr std::array<MeshAxis, kMeshAxisCount> kMeshAxes = {
    MeshAxis::kPp, MeshAxis::kDpReplicate, MeshAxis::kDpShard, MeshAxis::kEp, MeshAxis::kCp, MeshAxis::kTp};

// The axes along which ranks take other rows of the batch, outermost first. To experts that ep distributes over its
// ranks, the rows of all these ranks are one batch.
inline constexpr std::array<MeshAxis, 3> kDataAxes = {MeshAxis::kDpReplicate, MeshAxis::kDpShard, MeshAxis::kEp};
constexpr bool IsDataAxis(MeshAxis axis) {
  return axis == MeshAxis::kDpReplicate || axis == MeshAxis::kDpShard || axis == MeshAxis::kEp;
}

// A set of axes, which a group of ranks can span. Sets are ordered as numbers whose lowest bit is the outermost axis,
// so that sets of one axis have the order of the axes.
class AxisSet {
 public:
  constexpr AxisSet() = default;
  constexpr AxisSet(MeshAxis axis) : bits_(Bit(axis)) {}  // NOLINT: implicit on purpose

  constexpr bool contains(MeshAxis axis) const { return (bits_ & Bit(axis)) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  // Whether the set has one axis.
  constexpr bool single() const { return bits_ != 0 && (bits_ & (bits_ - 1U)) == 0; }
  constexpr void insert(MeshAxis axis) { bits_ |= Bit(axis); }
  // The axes of the set, outermost first.
  std::vector<MeshAxis> axes() const;
  constexpr auto operator<=>(const AxisSet&) const = default;

 private:
  static constexpr uint32_t Bit(MeshAxis axis) { return uint32_t{1} << static_cast<unsigned>(axis); }
  uint32_t bits_ = 0;
};

// "pp", "dp_replicate", "dp_shard", "ep", "cp", "tp".
const char* ToString(MeshAxis axis);
// "tp", "dp_shard x cp": the names of the axes, outermost first.
std::string ToString(AxisSet axes);
// Also accepts "dp" for dp_shard. Returns nullopt for any other name.
std::optional<MeshAxis> MeshAxisFromName(std::string_view name);
// Returns the six names, for messages.
std::span<const std::string> MeshAxisNames();

// The largest number of ranks of a mesh. The limit ensures that passes that visit every rank take at most seconds.
inline constexpr int64_t kMostRanks = int64_t{1} << 20;

class MeshShape {
 public:
  MeshShape() = default;  // one rank

  // Makes a mesh from axes in any order. The name "cp_heads" gives the inner factor of cp: { cp = 8, cp_heads = 4 } is
  // "cp=2x4". Errors (kUnknownAxis, kBadMesh): an unknown or repeated name, a size below 1, more than kMostRanks ranks,
  // cp_heads that does not divide cp, or that makes a factor of cp 1.
  static Result<MeshShape> Make(std::span<const std::pair<std::string, int64_t>> axes);
  // Make({{"dp_shard", 2}, {"tp", 4}}).
  static Result<MeshShape> Make(std::initializer_list<std::pair<std::string, int64_t>> axes) {
    return Make(std::span(axes.begin(), axes.size()));
  }
  // Parses "tp=2,dp=4" and "cp=2x4"; an empty text is a mesh of one rank. Errors: those of Make; kBadMesh for a text of
  // another form.
  static Result<MeshShape> Parse(std::string_view text);

  int64_t size(MeshAxis axis) const { return sizes_[static_cast<size_t>(axis)]; }
  // The product of the sizes of the axes.
  int64_t size(AxisSet axes) const;
  int64_t world_size() const;
  // The inner factor of cp, which is the number of consecutive ranks of cp that exchange heads; 1 if cp is one number.
  int64_t cp_heads() const { return cp_heads_; }
  // Returns the coordinate of `rank` along `axis`. Requires 0 <= rank < world_size().
  int64_t Coordinate(int64_t rank, MeshAxis axis) const;
  // The number of `rank` in its group over `axes`: its coordinates along these axes, row-major.
  int64_t Coordinate(int64_t rank, AxisSet axes) const;
  // The product of the sizes of the data axes, and the number of `rank` among the parts of a batch: its coordinates
  // along the data axes, row-major.
  int64_t data_ranks() const;
  int64_t DataCoordinate(int64_t rank) const;
  // Returns the ranks of the process group of `rank` along `axis`: those whose other coordinates are equal, in the
  // order of their coordinate along `axis`, including `rank`.
  std::vector<int64_t> GroupOf(int64_t rank, MeshAxis axis) const;
  // The same over several axes, in the order of Coordinate(rank, axes).
  std::vector<int64_t> GroupOf(int64_t rank, AxisSet axes) const;
  // Returns "dp_shard=4,tp=2" or "cp=2x4,tp=2": the axes with a size above 1 in their fixed order; "tp=1" for a single
  // rank.
  std::string ToString() const;
  // Returns the same for JSON, and for Make: {dp_shard, 4}, {tp, 2}, and of a cp of two factors {cp, 8}, {cp_heads, 4}.
  std::vector<std::pair<std::string, int64_t>> Sizes() const;
  bool operator==(const MeshShape&) const = default;

 private:
  std::array<int64_t, kMeshAxisCount> sizes_ = {1, 1, 1, 1, 1, 1};
  int64_t cp_heads_ = 1;
};

}  // namespace moonshard
