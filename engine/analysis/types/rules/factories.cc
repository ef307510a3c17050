// Operators that make tensors of numbers: the same on every rank. Random numbers count as such where every rank draws
// them alike.
#include "engine/analysis/types/rule_table.h"

namespace moonshard {
namespace {

AxisTypes Constant(Operands& o) {
  AxisTypes out;
  for (size_t i = 0; i < o.products(); ++i) out.push_back(AxisType::Uniform(o.made_dims(i)));
  return out;
}

AxisTypes Zeros(Operands& o) {
  AxisTypes out = Constant(o);
  for (AxisType& type : out) {
    type.zero = true;
    if (o.size() == 0 || !o.type(0).is_shard() || o.made() != o.sizes(0)) continue;
    type.map = o.type(0).map;
    type.dim = o.type(0).dim;
  }
  return out;
}

AxisTypes Counted(Operands& /*o*/) { return {AxisType::Replicate()}; }

}  // namespace

void AddFactoryRules(RuleTable& table) {
  table.AddAten({"zeros", "zeros_like", "new_zeros", "zero", "_efficientzerotensor"}, Zeros);
  table.AddAten({"ones", "full", "empty", "empty_strided", "scalar_tensor", "ones_like", "full_like", "empty_like",
                 "new_ones", "new_full", "new_empty", "new_empty_strided", "fill"},
                Constant);
  table.AddAten({"arange", "eye", "linspace", "tril_indices", "triu_indices", "rand", "randn", "randint", "randperm",
                 "rand_like", "randn_like", "uniform", "normal", "bernoulli", "random", "exponential", "lift"},
                Counted);
}

}  // namespace moonshard
