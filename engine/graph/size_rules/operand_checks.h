// What holds for the operands of every operator, whatever its rule. Internal to engine/graph.
#pragma once

#include "engine/graph/size_rules/node_sizes.h"

namespace moonshard::graph {

// Records a conflict if operands that are sharded along one dim each give a result that is sharded along two.
void TakeNoTwoShards(NodeSizes& n);

// Records a conflict if the operator uses a number that follows a shard as a value: `x / n`, `full(sizes, n)`,
// `scale=n**-0.5`. Each float is a value, and so is each number of an elementwise operator. The integers of other
// operators are sizes, except for arguments like `alpha` and `fill_value`.
void TakeNoShardValues(NodeSizes& n);

}  // namespace moonshard::graph
