// Parameters that a module adds after its output is reduced, as a rowwise bias. Internal to engine/graph.
#pragma once

#include "engine/graph/size_rules/node_sizes.h"

namespace moonshard::graph {

// A parameter that a module adds after its output is reduced (LocalTensor::late) is left out of the module's forward,
// so the result of the operator that adds it lacks it (LocalTensor::lacks) until it is output 0 of the module. Records
// a conflict of an operator that reads such a parameter otherwise than as the last addend along the last dim, as
// aten::linear does and aten::addmm, or that changes the elements of a tensor that lacks one, or their last dim. Other
// sums are no changes.
void TakeLate(NodeSizes& n);

}  // namespace moonshard::graph
