// SizeRules: one rule per operator, which computes the local sizes of the operator's results from the local sizes of
// its operands. The rules are in the files of this folder by idea (rules.h), and so is what holds for all operators
// (operand_checks.h, partial_sums.h, late_parameters.h). Internal to engine/graph.
#pragma once

#include <string>
#include <string_view>

#include "engine/graph/size_rules/node_sizes.h"

namespace moonshard::graph {

using SizeRule = void (*)(NodeSizes&);

// Returns the rule of an operator by its name without overload, "aten::view"; nullptr if the operator has no rule. An
// in-place operator has the rule of the operator without the underscore.
SizeRule SizeRuleOf(const std::string& name);

// Returns whether the operator is elementwise: it computes each element of its result from the elements of its operands
// at the same position.
bool IsElementwise(const std::string& name);

// The name of an operator without namespace and without the underscore of an in-place operator.
std::string_view PlainName(std::string_view name);

}  // namespace moonshard::graph
