// Order: which features of a projection each rank has, and in which order. The lints that compare two projections
// feature by feature (lint.h) use it.
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

// Returns the blocks that have modules with one of `names`; of blocks whose modules have equal names and layouts, only
// the first. A returned block contains only modules that own a matrix and have one of `names`.
std::vector<LintBlock> BlocksWith(const Flow& flow, std::span<const std::string_view> names);

// Returns the output features of the projection on each rank, in the order of the weight's rows (if tp does not shard
// the rows, in the order of the declared layout); nullopt if the plan does not declare an output with sharded features,
// or if a redistribution changes the output.
std::optional<DimShards> FeaturesMade(const Flow& flow, const ModuleGroup& group);
// Returns the input features of the projection on each rank, in the order of the weight's columns (if tp does not shard
// the columns, in the order of the declared layout); nullopt if the plan does not declare an input with sharded
// features, or if a redistribution changes the input.
std::optional<DimShards> FeaturesTaken(const Flow& flow, const ModuleGroup& group);

// Returns the layout of the weight on tp if tp shards it along tensor dim `dim`; else nullptr.
const Layout* WeightAlong(const Flow& flow, const ModuleGroup& group, int dim);

}  // namespace moonshard
