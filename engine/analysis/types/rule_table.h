// RuleTable: the layout rules of operators, by name without overload ("aten::mm"). One file of rules/ for each kind of
// operator; each is a table of names over a few functions.
//
// A rule computes with the types of one axis (axis_type.h). In short: the result of a linear operator on a partial
// tensor is partial, any other operator needs it reduced first; shards stay shards under elementwise operators, and a
// contraction over the sharded dim makes a partial tensor.
// Stage before: operands.h. Stage after: operator_checker.h, which looks up each operator that runs.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>

#include "engine/analysis/types/operands.h"

namespace moonshard {

class RuleTable {
 public:
  // The rules of ATen's operators.
  static const RuleTable& BuiltIn();

  void Add(std::string name, OperatorRule rule) { rules_[std::move(name)] = std::move(rule); }
  // Under each of the names, in namespace aten.
  void AddAten(std::initializer_list<const char*> names, const OperatorRule& rule);
  const OperatorRule* Find(const std::string& name) const;
  // Of operators without a rule that carry ATen's tag `pointwise`.
  static const OperatorRule& AnyPointwise();

 private:
  std::unordered_map<std::string, OperatorRule> rules_;
};

// rules/
void AddPointwiseRules(RuleTable& table);
void AddViewRules(RuleTable& table);
void AddJoinRules(RuleTable& table);
void AddMatmulRules(RuleTable& table);
void AddConvolutionRules(RuleTable& table);
void AddReductionRules(RuleTable& table);
void AddIndexRules(RuleTable& table);
void AddAttentionRules(RuleTable& table);
void AddNormRules(RuleTable& table);
void AddLossRules(RuleTable& table);
void AddFactoryRules(RuleTable& table);
void AddCollectiveRules(RuleTable& table);

}  // namespace moonshard
