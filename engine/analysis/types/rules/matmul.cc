// Products of matrices: [batch.., row, inner] x [batch.., inner, column].
//
//   rows in shards          x whole              rows in shards
//   whole                   x columns in shards  columns in shards
//   inner in shards         x inner in shards    terms of a sum
//   batch in shards         x batch in shards    batch in shards
//   terms of a sum          x whole              terms of a sum
//
// The table is that of block matrices. A rank computes one block product; where the inner dim is sharded the same way on both
// sides, the block products add up to the result, hence partial. Rows on one side and columns on the other give each rank one
// block of a grid of which only the diagonal is computed: no layout describes that, so it is refused. Terms times a
// replicated matrix stay terms because the product distributes over the sum; terms times terms would need the mixed terms
// that no rank has. Backward products need no rules of their own: d x = d y w^T and d w = x^T d y are products of the same
// kind, and their types follow from the types of gradient and operand (a colwise layer's d x sums over sharded columns and
// is partial: the reason why its input must be declared shared).
#include "engine/analysis/types/rule_table.h"
#include "engine/analysis/types/rules/combine.h"

namespace moonshard {
namespace {

// Operands a and b with `batch` dims before the matrix. `a_inner`, `b_inner`: the dim that is summed over.
AxisType Product(Operands& o, const AxisType& a, const AxisType& b, int batch) {
  const int row = batch;
  const int inner = batch + 1;
  const int column = batch + 1;
  if (a.is(TypeKind::kVarying) || b.is(TypeKind::kVarying) || a.is(TypeKind::kOwnRows) || b.is(TypeKind::kOwnRows)) {
    return AxisType::Of(TypeKind::kVarying);
  }
  if (a.is_partial() || b.is_partial()) {
    if (a.is_partial() && b.is_partial()) {
      return o.Fault("a product of two sums whose terms are still apart: one of them must be made first",
                     SuggestedFix::kMakeSum);
    }
    if (!(a.is_partial() ? b : a).is_replicate())
      return o.Fault("terms of a sum meet shards: the sum must be made first", SuggestedFix::kMakeSum);
    return a.is_partial() ? a : b;
  }
  if (a.is_replicate() && b.is_replicate()) return AxisType::Replicate();
  // The result's dims are rows and columns of two tensors: what a shard was opened into is none of them.
  const auto product = [](AxisType type) {
    type.behind = -1;
    return type;
  };
  if (a.is_shard() && b.is_shard()) {
    if (a.dim == inner && b.dim == row) {
      if (a.lead != b.lead) return o.Fault("the dim that is summed over is cut in two ways");
      return AxisType::Partial();
    }
    if (a.dim == b.dim && a.dim < batch) {
      AxisType result = product(a);
      result.uneven = a.uneven || b.uneven;
      return result;
    }
    return o.Fault(
        "rows of one and columns of the other are in shards: each rank computes one block of the result alone");
  }
  const AxisType& cut = a.is_shard() ? a : b;
  const AxisType& full = a.is_shard() ? b : a;
  AxisType result = product(cut);
  if (cut.dim < batch) {
    if (full.uniform_along(cut.dim)) return result;
    return o.Fault("a batch of matrices in shards meets a whole one");
  }
  if (a.is_shard() ? a.dim == inner : b.dim == row) {
    if (full.uniform_along(a.is_shard() ? row : inner)) return AxisType::Partial();
    return o.Fault(a.is_shard() ? "the dim that is summed over is in shards on the left and whole on the right"
                                : "the dim that is summed over is whole on the left and in shards on the right");
  }
  result.dim = a.is_shard() ? row : column;
  return result;
}

AxisTypes MatMul(Operands& o) { return {Product(o, o.type(0), o.type(1), 0)}; }
AxisTypes BatchMatMul(Operands& o) { return {Product(o, o.type(0), o.type(1), 1)}; }

// bias + a b.
AxisTypes AddMatMul(Operands& o) {
  const AxisType product = Product(o, o.type(1), o.type(2), o.name() == "baddbmm" ? 1 : 0);
  if (!product.is_known()) return {product};
  if (product.is_partial() && o.type(0).is_replicate()) {
    return {o.Fault(
        "the bias is added to terms of a sum and would count once for each rank: it must be added after the sum",
        SuggestedFix::kAddBiasAfter)};
  }
  const Meeting terms[2] = {{&o.type(0), o.sizes(0)}, {&product, o.made()}};
  return {Meet(o, terms, o.made_dims(), Dependence::kLinear)};
}

// [row, inner] x [inner], [inner] x [inner].
AxisTypes MatVec(Operands& o) {
  const AxisType& a = o.type(0);
  const AxisType& b = o.type(1);
  if (a.is_shard() && b.is_replicate() && o.name() == "mv" && a.dim == 0) return {a};
  if (a.is_shard() && b.is_shard() && a.dim == o.dims(0) - 1) return {AxisType::Partial()};
  if (a.is_replicate() && b.is_replicate()) return {AxisType::Replicate()};
  if (a.is_partial() != b.is_partial() && (a.is_partial() ? b : a).is_replicate()) return {a.is_partial() ? a : b};
  return {o.Fault("the dim that is summed over is not in the same shards on both sides")};
}

}  // namespace

void AddMatmulRules(RuleTable& table) {
  table.AddAten({"mm"}, MatMul);
  table.AddAten({"bmm"}, BatchMatMul);
  table.AddAten({"addmm", "baddbmm"}, AddMatMul);
  table.AddAten({"mv", "dot", "vdot"}, MatVec);
}

}  // namespace moonshard
