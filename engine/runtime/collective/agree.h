// Agree: all ranks of a mesh hold the same text (a compiled plan in its canonical form), or all of them fail with the
// difference. Called once, before the first collective.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "engine/runtime/mesh/device_mesh.h"

namespace moonshard {

// Every rank calls it with the same `what` ("the compiled plan"), in the same order as other calls. Compares hashes over
// the mesh's store; only where they differ are texts read, and each rank says which line differs first. Does nothing in
// a mesh of one rank or a Recording mesh.
// Throws PlanError on every rank: kRanksDisagree; or kRankLost with the ranks that did not come within `timeout`.
void Agree(const DeviceMesh& mesh, std::string_view what, const std::string& text,
           std::chrono::milliseconds timeout = std::chrono::minutes(2));

}  // namespace moonshard
