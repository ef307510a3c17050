// LocalShape: the shard of a parameter that one rank holds under a placement, and the tied parameters that are not
// counted where elements or bytes of a compiled plan are added up.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "engine/layout/layout.h"
#include "engine/layout/mesh_shape.h"
#include "engine/layout/module_tree.h"
#include "engine/layout/shards.h"

namespace moonshard {

// Returns, for each dim of the full shape `shape`, the intervals of indices that rank `rank` holds, in the order of its
// local tensor. Axes that shard the same dim divide it one after the other, the innermost axis (tp) first. `placement`
// must be compiled, so that it fits the shape.
std::vector<std::vector<Interval>> LocalIntervals(const std::vector<int64_t>& shape, const Placement& placement,
                                                  const MeshShape& mesh, int64_t rank);
// Returns the shape of the local tensor of rank `rank`.
std::vector<int64_t> LocalShape(const std::vector<int64_t>& shape, const Placement& placement, const MeshShape& mesh,
                                int64_t rank);

// Whether an axis of more than one rank shards the parameter.
bool IsSharded(const Placement& placement, const MeshShape& mesh);

// Returns the parameters that are tied to an earlier parameter: the tensor is stored and counted with the first of
// them.
std::set<ParamRef> TiedCopies(const ModuleTree& tree);

}  // namespace moonshard
