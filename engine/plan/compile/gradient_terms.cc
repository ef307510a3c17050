#include "engine/plan/compile/gradient_terms.h"

#include <ranges>

#include "engine/layout/shards.h"

namespace moonshard {
namespace {

std::vector<GradientTerm> TermsOfShard(const Layout& layout, int64_t size, MeshAxis axis, int64_t ranks,
                                       int64_t coordinate) {
  const std::vector<DimShards::LocalPart> parts =
      DimShards::Make(layout, size, ranks).ValueOrThrow().PartsOf(coordinate);
  std::vector<GradientTerm> terms;
  for (const DimShards::LocalPart& part : parts) {
    if (part.replicas == 1) continue;
    const GradientGroup group = {axis, part.replicas};
    if (parts.size() == 1) return {{group}};
    if (!terms.empty() && terms.back().group == group && terms.back().begin + terms.back().length == part.local_begin) {
      terms.back().length += part.global.length;
    } else {
      terms.push_back({group, layout.dim, part.local_begin, part.global.length});
    }
  }
  return terms;
}

}  // namespace

std::vector<GradientTerm> GradientTermsOf(const std::vector<int64_t>& shape, const Placement& placement,
                                          const MeshShape& mesh, int64_t rank) {
  std::vector<GradientTerm> out;
  for (MeshAxis axis : std::views::reverse(kMeshAxes)) {
    const Layout& layout = placement[axis];
    const int64_t ranks = mesh.size(axis);
    if (ranks == 1) continue;
    if (layout.kind == LayoutKind::kShared) {
      out.push_back({GradientGroup{axis, ranks}});
    } else if (layout.is_shard() && (axis == MeshAxis::kTp || !layout.is_plain_shard())) {
      const std::vector<GradientTerm> terms =
          TermsOfShard(layout, shape[static_cast<size_t>(layout.dim)], axis, ranks, mesh.Coordinate(rank, axis));
      out.insert(out.end(), terms.begin(), terms.end());
    }
  }
  return out;
}

}  // namespace moonshard
