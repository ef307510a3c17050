// Embedding bags: the sum, mean or maximum of rows of a table, one for each bag of ids. Ids count the rows of the full
// table, so that rows must not be sharded; a shard of the columns passes through. Sums and means are linear in the
// table.
#include "engine/analysis/types/rule_table.h"
#include "engine/analysis/types/rules/combine.h"

namespace moonshard {
namespace {

constexpr int64_t kMaximum = 2;  // the mode

// Whether the ids, where bags begin and the weights of ids are the same on every rank. Reports to `o`.
bool IdsAreReplicated(Operands& o, size_t first) {
  for (size_t i = first; i < o.size(); ++i) {
    if (o.type(i).is_replicate()) continue;
    o.Unproven("no rule for a bag of ids that differ between ranks");
    return false;
  }
  return true;
}

// (table, ids, begins, scale by frequency, mode, sparse, weights of ids, ...) -> bags [bags, columns], the bag of each
// id, the size of each bag, and the ids of maxima.
AxisTypes Bags(Operands& o) {
  if (!IdsAreReplicated(o, 1)) return {AxisType::Of(TypeKind::kUnproven)};
  const AxisType& table = o.type(0);
  if (table.is_partial() && o.Int(4) == kMaximum)
    return {o.Fault("a maximum of rows of a partial table; reduce the table first", SuggestedFix::kMakeSum)};
  if (table.is_shard() && table.dim == 0)
    return {o.Fault("global ids are used on a local shard of the table, whose rows are sharded")};
  AxisTypes out(o.products(), AxisType::Replicate());
  out[0] = OfNewValues(table);
  const bool maxima = o.Int(4) == kMaximum && out.size() > 3;
  if (maxima) out[3] = out[0];
  return out;
}

// (gradient, ids, .., rows, scale by frequency, mode, ...): the gradient of the table.
AxisTypes BagsBackward(Operands& o) {
  const AxisType& gradient = o.type(0);
  const bool maxima = o.Int(o.Named("mode")) == kMaximum;
  for (size_t i = 1; i < o.size(); ++i) {
    const bool as_gradient = maxima && gradient.is_shard() && o.type(i).is_shard() && o.type(i).dim == gradient.dim;
    if (!o.type(i).is_replicate() && !as_gradient)
      return {o.Unproven("no rule for a bag of ids that differ between ranks")};
  }
  if (gradient.is_shard() && gradient.dim == 0)
    return {o.Fault("the gradient of bags is sharded, but the ids are not; each rank would use the first bags")};
  return {OfNewValues(gradient)};
}

}  // namespace

void AddBagRules(RuleTable& table) {
  table.AddAten({"_embedding_bag", "_embedding_bag_forward_only"}, Bags);
  table.AddAten({"_embedding_bag_backward", "_embedding_bag_dense_backward"}, BagsBackward);
}

}  // namespace moonshard
