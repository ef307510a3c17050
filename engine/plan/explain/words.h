// Words: small texts that everything for people shares.
#pragma once

#include <cstdint>
#include <string>

#include "engine/layout/collective_counts.h"
#include "engine/layout/mesh_shape.h"
#include "engine/plan/plan/plan.h"

namespace moonshard {

// "512 B", "1.25 KiB", "3.50 GiB".
std::string BytesText(int64_t bytes);
// The collective that a compiled move issues on this mesh in one direction: "all_reduce"; "" where it issues none.
std::string CollectiveText(const Redistribution& move, const MeshShape& mesh, Direction direction);
// Both: "all_reduce forward, reduce_scatter backward"; "" where neither direction communicates.
std::string CollectivesText(const Redistribution& move, const MeshShape& mesh);
// "replicate -> shared", or the layout alone where nothing moves.
std::string RedistributionText(const Redistribution& move);

}  // namespace moonshard
