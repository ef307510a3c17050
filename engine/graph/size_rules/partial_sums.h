// Partial tensors: which operators keep a sum over the ranks, and which zeros may be added to one. Internal to
// engine/graph.
#pragma once

#include <string>
#include <string_view>

#include "engine/graph/size_rules/node_sizes.h"

namespace moonshard::graph {

// Returns whether the operator is linear in its tensor operands, in each for given others or in all together, so that
// its results are partial if an operand is.
bool IsLinear(const std::string& name);

// Returns whether the results depend only on the shape of the first operand: zeros_like.
bool TakesShapeOnly(std::string_view name);

// Returns whether the operator makes zeros, or memory without values, from nothing or from zeros.
bool MakesZeros(const NodeSizes& n);

// Records a conflict of an operator that has a rule and a partial operand or result:
// - The operator is not linear in the partial operand: the sum of the ranks' results is not the operator's result for
//   the sum of the partial tensors. Linear are the operators of IsLinear, but not a product of two partial tensors, nor
//   in operands that they divide by or look up by. If all ranks but one have zeros, the sum of the results may be
//   right, as for a norm of rows of an embedding, but the gradients of the operator's other operands are wrong.
// - Another operand or the result is sharded.
// - A full tensor or a number other than zero is added: the sum would have it once per rank. Zeros may be added, and a
//   parameter that the module adds after its output is reduced (LocalTensor::late).
void TakeNoTerms(NodeSizes& n);

}  // namespace moonshard::graph
