// RuleTable: the layout rules of operators, by name without overload ("aten::mm"). rules/ has one file for each kind of
// operator; in each file a few functions serve as the rules of many operators.
//
// A rule computes with the types of one axis (axis_type.h). In short: the result of a linear operator on a partial
// tensor is partial, and any other operator needs a tensor that was reduced first; the result of an elementwise
// operator on shards is a shard, and the result of a contraction over the sharded dim is partial.
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
  // Adds the rule under each of the names, in namespace aten.
  void AddAten(std::initializer_list<const char*> names, const OperatorRule& rule);
  // Returns the rule of an operator, such as "aten::mm"; null if the operator has no rule. The table owns the rule.
  const OperatorRule* Find(const std::string& name) const;
  // The rule for operators that have ATen's tag `pointwise` and no rule of their own.
  static const OperatorRule& AnyPointwise();
  // The reason of an unproven operator whose rule does not follow operands that are as long as a shard
  // (AxisType::local).
  static constexpr std::string_view kNoRuleForLocal = "no rule for a constant that is as long as a shard";

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
void AddSpatialRules(RuleTable& table);
void AddOrderRules(RuleTable& table);
void AddBagRules(RuleTable& table);
void AddLossRules(RuleTable& table);
void AddFactoryRules(RuleTable& table);
void AddCollectiveRules(RuleTable& table);

}  // namespace moonshard
