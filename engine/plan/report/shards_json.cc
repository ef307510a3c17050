#include "engine/plan/report/report_data.h"

#include <algorithm>

#include "engine/plan/compile/local_shape.h"

namespace moonshard {
namespace {

// The rank with these coordinates on these axes and 0 on all others.
int64_t RankAt(const MeshShape& mesh, const std::vector<MeshAxis>& axes, int64_t place) {
  std::vector<int64_t> coordinates(kMeshAxisCount, 0);
  for (size_t i = axes.size(); i-- > 0;) {
    coordinates[static_cast<size_t>(axes[i])] = place % mesh.size(axes[i]);
    place /= mesh.size(axes[i]);
  }
  int64_t rank = 0;
  for (MeshAxis axis : kMeshAxes) rank = rank * mesh.size(axis) + coordinates[static_cast<size_t>(axis)];
  return rank;
}

}  // namespace

JsonValue ShardsJson(const std::vector<int64_t>& shape, const Placement& placement, const MeshShape& mesh) {
  JsonValue::Array dims;
  for (size_t d = 0; d < shape.size(); ++d) {
    std::vector<MeshAxis> axes;
    int64_t places = 1;
    JsonValue::Array names;
    for (MeshAxis axis : kMeshAxes) {
      const Layout& layout = placement[axis];
      if (!layout.is_shard() || layout.dim != static_cast<int>(d) || mesh.size(axis) == 1) continue;
      axes.push_back(axis);
      names.emplace_back(ToString(axis));
      places *= mesh.size(axis);
    }
    if (axes.empty()) {
      dims.emplace_back(nullptr);
      continue;
    }
    JsonValue::Array shards;
    for (int64_t place = 0; place < std::min(places, kMostShards); ++place) {
      JsonValue::Array intervals;
      const auto local = LocalIntervals(shape, placement, mesh, RankAt(mesh, axes, place));
      for (const Interval& i : local[d]) {
        if (i.length > 0) intervals.emplace_back(JsonValue::Array{i.begin, i.length});
      }
      shards.emplace_back(std::move(intervals));
    }
    dims.emplace_back(JsonValue::Object{{"axes", std::move(names)}, {"of", places}, {"shards", std::move(shards)}});
  }
  return dims;
}

}  // namespace moonshard
