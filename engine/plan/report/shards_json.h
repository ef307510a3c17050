// PiecesJson: how a parameter lies on the ranks, for a drawing.
#pragma once

#include <vector>

#include "engine/core/base/json.h"
#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {

// {"axes": ["tp"], "shards": [[[begin, length], ...], ...]} for every tensor dim that an axis of more than one rank cuts,
// null for the others. A shard for every place on these axes, the last axis running fastest, at most kMostPieces; "of" is
// how many there are.
JsonValue ShardsJson(const std::vector<int64_t>& shape, const Placement& placement, const MeshShape& mesh);

inline constexpr int64_t kMostShards = 64;

}  // namespace moonshard
