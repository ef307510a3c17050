// Short texts that explain, the report, the footprint and the REPL share: folded paths, bytes, redistributions,
// collectives.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/layout/collective_counts.h"
#include "engine/layout/mesh_shape.h"
#include "engine/plan/plan/plan.h"

namespace moonshard {

// Paths that differ in numbers only, as one: "model.layers.{0..31}.mlp".
//
// `paths` is not empty, and all are of one path class. A component with one number keeps it; several become {0..31}, or
// {0,2,5..7} if numbers are missing. What is no such number ({1,01,99999999999999999999}) follows the
// ranges as it is. Components vary independently, which is exact if all combinations occur, as they do
// for layers and experts.
std::string FoldPaths(const std::vector<std::string>& paths);

// "512 B", "1.25 KiB", "3.50 GiB".
std::string BytesText(int64_t bytes);
// "replicate -> shared", or the layout alone if both are equal.
std::string RedistributionText(const Redistribution& redistribution);

}  // namespace moonshard
