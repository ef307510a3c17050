// LocalIndices: the operators that may read local indices (AxisType::local_in), and what they make of them. Local
// indices are other numbers than the indices of the full tensor, so only an operator that indexes a shard with them, or
// that moves them without computing, has a result that a layout describes.
// Stage before: operands.h. Stage after: operator_checker.h, which calls both functions for each operator.
#pragma once

#include <string>

#include "engine/analysis/types/operands.h"

namespace moonshard {

// Returns why the operator may not read one of its operands, which has local indices; "": it may read all operands. The
// rules of operators that index compare the maps (rules/indexing.cc).
std::string LocalIndicesMisused(const Operands& o);

// Sets `local_in` and `local_column` of the results of a rule: of moved local indices those of the operand, else none.
// Results of `nonzero` keep what the rule set.
void SetLocalIndices(const Operands& o, AxisTypes& made);

}  // namespace moonshard
