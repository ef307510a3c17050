// PiecesJson: how a parameter lies on the ranks, for a drawing.
#pragma once

#include <vector>

#include "engine/base/json.h"
#include "engine/compile/compiled_plan.h"

namespace moonshard {

// {"axes": ["tp"], "pieces": [[[begin, length], ...], ...]} for every tensor dim that an axis of more than one rank cuts,
// null for the others. A piece for every place on these axes, the last axis running fastest, at most kMostPieces; "of" is
// how many there are.
JsonValue PiecesJson(const std::vector<int64_t>& shape, const Placement& placement, const MeshShape& mesh);

inline constexpr int64_t kMostPieces = 64;

}  // namespace moonshard
