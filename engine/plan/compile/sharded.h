// Sharded: what counts as a sharded parameter, and which parameters count at all, wherever elements or bytes of a compiled
// plan are added up (cost.h, mostly_replicated.h).
#pragma once

#include <set>

#include "engine/layout/layout.h"
#include "engine/layout/mesh_shape.h"
#include "engine/layout/module_tree.h"

namespace moonshard {

// Whether an axis of more than one rank cuts it.
bool IsSharded(const Placement& placement, const MeshShape& mesh);

// Parameters that are not the first of their tie: stored and counted with the first.
std::set<ParamRef> Repeats(const ModuleTree& tree);

}  // namespace moonshard
