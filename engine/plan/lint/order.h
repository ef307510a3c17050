// Which features of a projection each rank has, and in which order: the common part of the lints that compare two
// projections feature by feature (lint.h).
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "engine/layout/shards.h"
#include "engine/plan/lint/flow.h"

namespace moonshard {

// The modules of one block that own a matrix: siblings by their real paths.
struct LintBlock {
  std::vector<ModuleGroup> modules;  // in tree order
  // The first module whose last component is one of `names`; nullptr if there is none.
  const ModuleGroup* Find(std::span<const std::string_view> names) const;
};

// One block of each kind: blocks whose modules have the same names and steps differ in nothing that is looked at here.
// Only modules whose last component is one of `names` are in them.
std::vector<LintBlock> BlocksWith(const Flow& flow, std::span<const std::string_view> names);

// The features that the projection leaves on each rank, as its weight has them; nothing where they do not leave
// sharded, or a redistribution changes them.
std::optional<DimShards> FeaturesMade(const Flow& flow, const ModuleGroup& group);
// The features that the projection takes on each rank, as the columns of its weight are sharded; nothing likewise.
std::optional<DimShards> FeaturesTaken(const Flow& flow, const ModuleGroup& group);

// The layout of the weight along `dim` on tp; nullptr where it is not sharded there.
const Layout* WeightAlong(const Flow& flow, const ModuleGroup& group, int dim);

}  // namespace moonshard
