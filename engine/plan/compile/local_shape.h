// LocalShape: what one rank holds of a parameter under a placement, and which parameters of a tree count where elements
// or bytes of a compiled plan are added up.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "engine/layout/layout.h"
#include "engine/layout/mesh_shape.h"
#include "engine/layout/module_tree.h"
#include "engine/layout/shards.h"

namespace moonshard {

// For each dim of `shape` the indices that `rank` holds, in the order of its local tensor. Axes that shard the same dim
// divide it one after the other, the innermost axis first. The placement has been compiled: it fits the shape.
std::vector<std::vector<Interval>> LocalIntervals(const std::vector<int64_t>& shape, const Placement& placement,
                                                  const MeshShape& mesh, int64_t rank);
std::vector<int64_t> LocalShape(const std::vector<int64_t>& shape, const Placement& placement, const MeshShape& mesh,
                                int64_t rank);

// Whether an axis of more than one rank shards it.
bool IsSharded(const Placement& placement, const MeshShape& mesh);

// Parameters that are tied to one before them: stored and counted with the first.
std::set<ParamRef> TiedCopies(const ModuleTree& tree);

}  // namespace moonshard
