// One table of plain functions and not a class for each operator: a rule has no state, several names share one, and a
// plan's operator_like is one more name for the same function. Rules are keyed without overload since the overloads of
// a name compute the same (add.Tensor, add.Scalar) and differ in where arguments are; rules look those up by the
// schema's names (Operands::Named) where overloads disagree. The table is made once and never changes; those who add
// rules copy it.
#include "engine/analysis/types/rule_table.h"

namespace moonshard {

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
    AddConvolutionRules(made);
    AddReductionRules(made);
    AddIndexRules(made);
    AddAttentionRules(made);
    AddNormRules(made);
    AddSpatialRules(made);
    AddOrderRules(made);
    AddBagRules(made);
    AddLossRules(made);
    AddFactoryRules(made);
    AddCollectiveRules(made);
    return made;
  }();
  return table;
}

}  // namespace moonshard
