// Order: the features of a projection that each rank has, in their order: the common part of the lints that compare two
// projections feature by feature (lint.h).
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "engine/layout/shards.h"
#include "engine/plan/lint/flow.h"

namespace moonshard {

// Siblings that own a matrix, by their real paths.
struct LintBlock {
  std::vector<ModuleGroup> modules;  // in tree order
  // Returns the first module whose name, the last component of its path, is one of `names`; nullptr if there is none.
  const ModuleGroup* Find(std::span<const std::string_view> names) const;
};

// Returns the blocks that have modules with one of `names`: one block for all blocks whose modules have equal names and
// layouts. A block contains only its modules with one of `names` that own a matrix.
std::vector<LintBlock> BlocksWith(const Flow& flow, std::span<const std::string_view> names);

// Returns the features that the projection leaves on each rank, in the order of its weight's rows; nullopt if they do
// not leave sharded, or if a redistribution changes the output.
std::optional<DimShards> FeaturesMade(const Flow& flow, const ModuleGroup& group);
// Returns the features that the projection takes on each rank, in the order of its weight's columns; nullopt if they do
// not arrive sharded, or if a redistribution changes the input.
std::optional<DimShards> FeaturesTaken(const Flow& flow, const ModuleGroup& group);

// Returns the layout of the weight on tp if tp shards it along tensor dim `dim`; else nullptr.
const Layout* WeightAlong(const Flow& flow, const ModuleGroup& group, int dim);

}  // namespace moonshard
