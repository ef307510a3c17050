#include "engine/plan/compile/local_shape.h"

#include <algorithm>
#include <ranges>

namespace moonshard {
namespace {

int64_t Length(const std::vector<Interval>& intervals) {
  int64_t sum = 0;
  for (const Interval& interval : intervals) sum += interval.length;
  return sum;
}

// The sub-intervals of `outer` at positions `inner`, where positions count within outer's concatenation. With a fused
// dim of parts [8, 4] on tp=2 and dp_shard=2, rank (dp 1, tp 0):
//
//   tp's shard         [0, 4) and [8, 10)           6 rows
//   dp_shard of 6      positions [3, 6)             the second half
//   composed           [3, 4) and [8, 10)           one row of the first part, two of the second
std::vector<Interval> Compose(const std::vector<Interval>& outer, const std::vector<Interval>& inner) {
  std::vector<Interval> out;
  for (const Interval& want : inner) {
    int64_t position = 0;
    for (const Interval& have : outer) {
      const int64_t begin = std::max(want.begin, position);
      const int64_t end = std::min(want.begin + want.length, position + have.length);
      if (begin < end) out.push_back({have.begin + begin - position, end - begin});
      position += have.length;
    }
  }
  return out;
}

}  // namespace

// Each axis shards what the axis before it left, tp first: the innermost axis shards the full dim, the next one the
// concatenation of the intervals that the rank has, and so on. Compose maps positions in that concatenation back to
// indices of the full dim. Outermost first would give the same sizes and other elements: under fsdp a gather over
// dp_shard has to give back tp's shard.
std::vector<std::vector<Interval>> LocalIntervals(const std::vector<int64_t>& shape, const Placement& placement,
                                                  const MeshShape& mesh, int64_t rank) {
  std::vector<std::vector<Interval>> out;
  for (int64_t size : shape) out.push_back({{0, size}});
  for (MeshAxis axis : std::views::reverse(kMeshAxes)) {
    const Layout& layout = placement[axis];
    if (!layout.is_shard() || mesh.size(axis) == 1) continue;
    std::vector<Interval>& dim = out.at(static_cast<size_t>(layout.dim));
    const Result<DimShards> shards = DimShards::Make(layout, Length(dim), mesh.size(axis));
    Check(shards.ok(), "a compiled placement does not fit its shape");
    dim = Compose(dim, shards.value().of(mesh.Coordinate(rank, axis)));
  }
  return out;
}

std::vector<int64_t> LocalShape(const std::vector<int64_t>& shape, const Placement& placement, const MeshShape& mesh,
                                int64_t rank) {
  std::vector<int64_t> out;
  for (const std::vector<Interval>& dim : LocalIntervals(shape, placement, mesh, rank)) out.push_back(Length(dim));
  return out;
}

bool IsSharded(const Placement& placement, const MeshShape& mesh) {
  return std::ranges::any_of(kMeshAxes,
                             [&](MeshAxis axis) { return mesh.size(axis) > 1 && placement[axis].is_shard(); });
}

std::set<ParamRef> TiedCopies(const ModuleTree& tree) {
  std::set<ParamRef> out;
  for (const auto& tie : tree.ties()) out.insert(tie.begin() + 1, tie.end());
  return out;
}

}  // namespace moonshard
