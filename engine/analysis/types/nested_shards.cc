#include "engine/analysis/types/nested_shards.h"

#include <utility>
#include <vector>

#include "engine/layout/shards.h"

namespace moonshard {
namespace {

constexpr int64_t kSequence = 1;
constexpr int64_t kFeatures = 2;
constexpr size_t kDims = 3;

bool Shards(const Layout& layout, int64_t dim, size_t dims) {
  const auto count = static_cast<int64_t>(dims);
  return layout.is_shard() && layout.owner < 0 && (layout.dim < 0 ? layout.dim + count : layout.dim) == dim;
}

// Whether `moved` shards what `axis` has left of the dim, and not the other way round.
bool IsInner(const MovedAlong& moved, MeshAxis axis, int64_t dim, size_t dims) {
  if (moved.axis == axis) return moved.inner;
  if (dims != kDims) return false;
  return dim == kFeatures ? moved.axis < axis : dim == kSequence && moved.axis > axis;
}

std::optional<DimShards> ShardsOf(const Layout& layout, int64_t size, int64_t ranks) {
  const Result<DimShards> shards = DimShards::Make(layout.Sized(size), size, ranks);
  return shards.ok() ? std::optional(shards.value()) : std::nullopt;
}

// The shards of all ranks of the axis, of each of which `moved` keeps this rank's part.
IndexMapPtr Shrunk(const IndexMap& map, const MovedAlong& moved) {
  std::vector<std::vector<Interval>> positions;
  for (int64_t r = 0; r < map.ranks(); ++r) {
    const std::optional<DimShards> shards = ShardsOf(moved.to, map.length(r), moved.ranks);
    if (!shards) return nullptr;
    positions.push_back(shards->of(moved.rank));
  }
  return map.Kept(positions);
}

// Shards of one length, each `after` long, in the order of the ranks or in zigzag. `map` is what `moved` had left of
// them on this rank, which both orders may have in common, so that it does not tell the order and is compared with it.
IndexMapPtr Grown(const IndexMap& map, const MovedAlong& moved, int64_t before, int64_t after, bool zigzag,
                  const ShardedBetween& between) {
  if (!map.even() || before * moved.ranks != after) return nullptr;
  const std::optional<DimShards> shards =
      ShardsOf(zigzag ? Layout::Zigzag(0) : Layout::Shard(0), after * between.ranks * map.ranks(), map.ranks());
  if (!shards) return nullptr;
  IndexMapPtr grown = IndexMap::Of(*shards);
  if (between.ranks > 1 && grown != nullptr) {
    const std::vector<Interval> part = {{after * between.rank, after}};
    grown = grown->Kept(std::vector<std::vector<Interval>>(static_cast<size_t>(map.ranks()), part));
  }
  if (grown == nullptr) return nullptr;
  const IndexMapPtr left = Shrunk(*grown, {moved.axis, moved.ranks, moved.rank, moved.to, moved.from, moved.inner});
  return left != nullptr && *left == map ? grown : nullptr;
}

// The parts of a fused dim on this rank; nullopt if the two axes have other parts.
std::optional<std::vector<int64_t>> PartsAfter(const AxisType& type, const MovedAlong& moved, bool enters) {
  const Layout& layout = enters ? moved.to : moved.from;
  if (type.parts.size() != layout.parts.size()) return std::nullopt;
  std::vector<int64_t> out;
  int64_t size = 0;
  for (const Layout::Part& part : layout.parts) {
    size += part.size;
    out.push_back(part.size);
  }
  if (!enters || out.empty()) return out;
  const std::optional<DimShards> shards = ShardsOf(layout, size, moved.ranks);
  if (!shards) return std::nullopt;
  out.clear();
  for (const DimShards::LocalPart& part : shards->PartsOf(moved.rank)) out.push_back(part.global.length);
  return out;
}

}  // namespace

std::optional<AxisType> TypeBeside(const AxisType& type, MeshAxis axis, int64_t rank, const MovedAlong& moved,
                                   at::IntArrayRef before, at::IntArrayRef after, bool zigzag,
                                   const ShardedBetween& between) {
  if (!type.is_shard() || before.size() != after.size()) return type;
  const auto dim = static_cast<size_t>(type.dim);
  if (dim >= before.size() || before[dim] == after[dim]) return type;
  const size_t dims = before.size();
  const bool enters = !Shards(moved.from, type.dim, dims) && Shards(moved.to, type.dim, dims);
  const bool leaves = Shards(moved.from, type.dim, dims) && !Shards(moved.to, type.dim, dims);
  if ((!enters && !leaves) || !IsInner(moved, axis, type.dim, dims)) return std::nullopt;
  // Of tokens that both axes shard, one axis' shards of other lengths are not known to be those of the other's ranks.
  if (type.dim == kSequence && axis != moved.axis && (type.uneven || (enters && before[dim] % moved.ranks != 0)))
    return std::nullopt;
  if (type.lead != 1 || type.chosen != nullptr || type.local_in != nullptr) return std::nullopt;
  AxisType out = AxisType::Shard(type.dim, after[dim]);
  out.since = type.since;
  out.by_value = type.by_value;
  out.of_gradient = type.of_gradient;
  std::optional<std::vector<int64_t>> parts = PartsAfter(type, moved, enters);
  if (!type.parts.empty()) {
    if (!parts) return std::nullopt;
    out.parts = std::move(*parts);
  }
  if (type.map == nullptr) return out;  // of a gradient, whose indices are those of its forward
  out.map = enters ? Shrunk(*type.map, moved)
                   : Grown(*type.map, moved, before[dim], after[dim], zigzag && type.dim == kSequence, between);
  if (out.map == nullptr || out.map->length(rank) != after[dim]) return std::nullopt;
  out.uneven = type.uneven || !out.map->even();
  if (type.head > 0 && out.map->size() % type.head == 0) {
    out.head = type.head;
    out.heads = out.map->size() / type.head;
  }
  return out;
}

}  // namespace moonshard
