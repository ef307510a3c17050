// One table of plain functions and not a class for each operator: a rule has no state, several names share one, and a
// plan's operator_like is one more name for the same function. Rules are keyed without overload since the overloads of
// a name compute the same (add.Tensor, add.Scalar) and differ in where arguments are; rules look those up by the
// schema's names (Operands::Named) where overloads disagree. The table is made once and never changes; those who add
// rules copy it.
#include "engine/analysis/types/rule_table.h"

#include <algorithm>

namespace moonshard {
namespace {

// A rule that does not follow which dims of a replicated operand are as long as a shard (AxisType::local).
OperatorRule WithoutLocal(OperatorRule rule) {
  return [rule = std::move(rule)](Operands& o) {
    AxisTypes made = rule(o);
    const auto is_local = [](const AxisType& type) { return type.is_replicate() && type.local != 0; };
    bool local = false;
    for (size_t i = 0; i < o.size(); ++i) local = local || is_local(o.type(i));
    if (!local || !o.fault().empty() || std::ranges::none_of(made, &AxisType::is_replicate)) return made;
    return AxisTypes{o.Unproven(std::string(RuleTable::kNoRuleForLocal))};
  };
}

}  // namespace

void RuleTable::AddAten(std::initializer_list<const char*> names, const OperatorRule& rule) {
  for (const char* name : names) rules_[std::string("aten::") + name] = rule;
}

const OperatorRule* RuleTable::Find(const std::string& name) const {
  const auto found = rules_.find(name);
  return found == rules_.end() ? nullptr : &found->second;
}

const RuleTable& RuleTable::BuiltIn() {
  static const RuleTable table = [] {
    RuleTable made;
    AddPointwiseRules(made);
    AddViewRules(made);
    AddJoinRules(made);
    AddMatmulRules(made);
    AddReductionRules(made);
    AddIndexRules(made);
    AddLossRules(made);
    AddFactoryRules(made);
    RuleTable others;
    AddConvolutionRules(others);
    AddAttentionRules(others);
    AddNormRules(others);
    AddSpatialRules(others);
    AddOrderRules(others);
    AddBagRules(others);
    AddCollectiveRules(others);
    for (auto& [name, rule] : others.rules_) made.Add(name, WithoutLocal(std::move(rule)));
    return made;
  }();
  return table;
}

}  // namespace moonshard
