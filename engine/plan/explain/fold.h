// Fold: many paths that differ in numbers only, as one: "model.layers.{0..31}.mlp".
#pragma once

#include <string>
#include <vector>

namespace moonshard {

// `paths` belong to one path class and are not empty. A component with one number keeps it; several become {0..31}, or
// {0,2,5..7} where numbers are missing. Components vary independently: that is exact where all combinations are there,
// as for layers and experts.
std::string FoldPaths(const std::vector<std::string>& paths);

}  // namespace moonshard
