#include "engine/plan/compile/sharded.h"

#include <algorithm>

namespace moonshard {

bool IsSharded(const Placement& placement, const MeshShape& mesh) {
  return std::ranges::any_of(kMeshAxes,
                             [&](MeshAxis axis) { return mesh.size(axis) > 1 && placement[axis].is_shard(); });
}

std::set<ParamRef> Repeats(const ModuleTree& tree) {
  std::set<ParamRef> out;
  for (const auto& tie : tree.ties()) out.insert(tie.begin() + 1, tie.end());
  return out;
}

}  // namespace moonshard
