// Texts: short texts that explain, the report, the footprint and the REPL share: folded paths, bytes, redistributions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/layout/collective_counts.h"
#include "engine/layout/mesh_shape.h"
#include "engine/plan/plan/plan.h"

namespace moonshard {

// Returns paths that differ in numbers only as one text: "model.layers.{0..31}.mlp".
//
// `paths` must not be empty, and all paths must be of one path class. A component with the same number in all paths
// keeps the number; different numbers become {0..31}, or {0,2,5..7} if numbers are missing. Digits that are not the
// usual text of a 64-bit number ("01", "99999999999999999999") follow the ranges unchanged: {1,01}. Each component is
// folded by itself, which is exact if all combinations of numbers occur, as they do for layers and experts.
std::string FoldPaths(const std::vector<std::string>& paths);
// Returns the paths of several classes, one folded text for each class: "lm_head, model.layers.{0..31}.mlp".
std::string FoldClasses(const std::vector<std::string>& paths);

// Returns "512 B", "1.25 KiB", "3.50 GiB".
std::string BytesText(int64_t bytes);
// Returns "replicate -> shared", or the layout alone if both are equal.
std::string RedistributionText(const Redistribution& redistribution);

}  // namespace moonshard
