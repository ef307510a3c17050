// Local shapes: what one rank holds of a parameter under a placement.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/layout/layout.h"
#include "engine/layout/mesh_shape.h"
#include "engine/layout/module_tree.h"
#include "engine/layout/shards.h"

namespace moonshard {

// For each dim of `shape` the indices that `rank` holds, in the order its local tensor has them. Axes that shard the same
// dim do it one after the other, the innermost axis first. The placement has been compiled: it fits the shape.
std::vector<std::vector<Interval>> LocalIntervals(const std::vector<int64_t>& shape, const Placement& placement,
                                                  const MeshShape& mesh, int64_t rank);
std::vector<int64_t> LocalShape(const std::vector<int64_t>& shape, const Placement& placement, const MeshShape& mesh,
                                int64_t rank);

}  // namespace moonshard
