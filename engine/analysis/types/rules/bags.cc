// Embedding bags: the sum, mean or maximum of rows of a table, one for each bag of ids. Ids count the rows of the full
// table; a shard of the columns passes through. Sums and means are linear in the table. In a table that is sharded by
// rows, ids are shifted to the rows of this rank (own rows, indexing.cc), and a sum is a term of the full one if each
// rank adds up the rows that it has. The operator has no result for each id that could be masked, but weights: those of
// ids of other ranks are zero, so that the weights are terms of the full weights (a mask of own rows makes such terms).
#include "engine/analysis/types/rule_table.h"
#include "engine/analysis/types/rules/combine.h"

namespace moonshard {
namespace {

constexpr int64_t kAddsUp = 0;  // the modes
constexpr int64_t kMaximum = 2;

// Whether the ids, where bags begin and the weights of ids are the same on every rank. Reports to `o`.
bool IdsAreReplicated(Operands& o, size_t first) {
  for (size_t i = first; i < o.size(); ++i) {
    if (o.type(i).is_replicate()) continue;
    o.Unproven("no rule for a bag of ids that differ between ranks");
    return false;
  }
  return true;
}

// Whether the operands are those of a sum over the own rows of each rank, but for the first one; `ids`: the operand of
// the ids. Reports to `o`.
bool AddsUpOwnRows(Operands& o, size_t ids) {
  const int weights = o.TensorOf(static_cast<int>(o.Named("per_sample_weights")));
  if (o.Int(o.Named("mode")) != kAddsUp || weights < 0 || !o.type(static_cast<size_t>(weights)).is_partial()) {
    o.Fault("ids of rows on other ranks are looked up, and no weights of zero mask them");
    return false;
  }
  for (size_t i = 1; i < o.size(); ++i) {
    if (i == ids || i == static_cast<size_t>(weights) || o.type(i).is_replicate()) continue;
    o.Unproven("no rule for bags that differ between ranks");
    return false;
  }
  return true;
}

AxisType RefusedBags(const Operands& o) {
  return AxisType::Of(o.fault().empty() ? TypeKind::kUnproven : TypeKind::kFaulty);
}

// (table, ids, begins, scale by frequency, mode, sparse, weights of ids, ...) -> bags [bags, columns], the bag of each
// id, the size of each bag, and the ids of maxima.
AxisTypes Bags(Operands& o) {
  if (o.type(1).is(TypeKind::kOwnRows) && o.type(0).is_shard() && o.type(0).dim == 0) {
    if (!AddsUpOwnRows(o, 1)) return {RefusedBags(o)};
    AxisTypes sums(o.products(), AxisType::Replicate());
    sums[0] = AxisType::Partial();
    return sums;
  }
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
  if (o.type(1).is(TypeKind::kOwnRows)) {
    if (!AddsUpOwnRows(o, 1)) return {RefusedBags(o)};
    if (!gradient.is_replicate()) return {o.Unproven("no rule for gradients of bags that differ between ranks")};
    return {AxisType::Shard(0, o.made()[0])};
  }
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

// (gradient, table, ids, begins, bag of each id, mode, padding): the gradient of the weights of ids, the sum over the
// columns of the products of gradient and row.
AxisTypes BagWeightsBackward(Operands& o) {
  const AxisType& gradient = o.type(0);
  const AxisType& table = o.type(1);
  // As the rows of ids of other ranks, their gradients are to be masked.
  const bool own_rows = o.type(2).is(TypeKind::kOwnRows) && table.is_shard() && table.dim == 0;
  if (own_rows && gradient.is_replicate()) return {AxisType::Of(TypeKind::kVarying)};
  if (!IdsAreReplicated(o, 2)) return {AxisType::Of(TypeKind::kUnproven)};
  if (gradient.is_replicate() && table.is_replicate()) return {AxisType::Replicate()};
  if ((gradient.is_replicate() && table.is_partial()) || (gradient.is_partial() && table.is_replicate()))
    return {AxisType::Partial()};
  if (gradient.is_shard() && gradient.dim == 1 && table.is_shard() && table.dim == 1) {
    AxisType columns = gradient;
    return {MeetMaps(o, columns, table) ? AxisType::Partial() : RefusedBags(o)};
  }
  return {o.Unproven("no rule for gradients of bags and a table in other layouts")};
}

}  // namespace

void AddBagRules(RuleTable& table) {
  table.AddAten({"_embedding_bag", "_embedding_bag_forward_only"}, Bags);
  table.AddAten({"_embedding_bag_backward", "_embedding_bag_dense_backward"}, BagsBackward);
  table.AddAten({"_embedding_bag_per_sample_weights_backward"}, BagWeightsBackward);
}

}  // namespace moonshard
