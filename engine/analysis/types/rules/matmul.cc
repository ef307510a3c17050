// Products of matrices: [batch.., row, inner] x [batch.., inner, column].
//
//   rows sharded      x replicated        rows sharded
//   replicated        x columns sharded   columns sharded
//   inner sharded     x inner sharded     partial
//   batch sharded     x batch sharded     batch sharded
//   partial           x replicated        partial
//
// The table is that of block matrices. A rank computes one block product; if the inner dim is sharded the same way on
// both sides, the block products add up to the result, hence partial. Rows on one side and columns on the other give
// each rank one block of a grid of which only the diagonal is computed: no layout describes that, so it is refused. A
// partial matrix times a replicated one is partial, because the product distributes over the sum; the product of two
// partial matrices would need the mixed terms, which no rank has. Backward products need no rules of their own:
// d x = d y w^T and d w = x^T d y are products of the same kind, and their types follow from the types of gradient and
// operand (d x of a colwise layer sums over sharded columns and is partial, which is why its input must be declared
// shared).
#include <algorithm>

#include "engine/analysis/types/rule_table.h"
#include "engine/analysis/types/rules/combine.h"

namespace moonshard {
namespace {

// Rows that are equal have equal products, and so have columns.
AxisType OfReplicated(const AxisType& a, const AxisType& b, int batch) {
  const uint64_t column = uint64_t{1} << (batch + 1);
  const uint64_t rows = column - 1;
  const uint64_t batches = rows >> 1;
  AxisType result = AxisType::Replicate();
  result.uniform = (a.uniform & b.uniform & batches) | (a.uniform & rows & ~batches) | (b.uniform & column);
  result.local = ((a.local | b.local) & batches) | (a.local & rows & ~batches) | (b.local & column);
  return result;
}

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
      return o.Fault("two partial tensors are multiplied; reduce one of them first", SuggestedFix::kMakeSum);
    }
    if (!(a.is_partial() ? b : a).is_replicate())
      return o.Fault("a partial tensor is combined with shards; reduce the partial tensor first",
                     SuggestedFix::kMakeSum);
    return a.is_partial() ? a : b;
  }
  if (a.is_replicate() && b.is_replicate()) {
    // Each rank adds as many terms as a shard is long.
    if (a.local_along(inner) || b.local_along(row)) {
      return a.zero || b.zero ? AxisType::Replicate() : AxisType::Partial();
    }
    return OfReplicated(a, b, batch);
  }
  // The result's dims are rows and columns of two tensors: none of them is the dim that a shard was opened into.
  const auto product = [](AxisType type) {
    type.behind = -1;
    return type;
  };
  if (a.is_shard() && b.is_shard()) {
    if (a.dim == inner && b.dim == row) {
      if (a.lead != b.lead) return o.Fault("the contracted dim is sharded in different ways in the two operands");
      AxisType summed = b;
      if (!MeetMaps(o, summed, a)) return AxisType::Of(o.fault().empty() ? TypeKind::kUnproven : TypeKind::kFaulty);
      return AxisType::Partial();
    }
    if (a.dim == b.dim && a.dim < batch) {
      AxisType result = product(a);
      if (!MeetMaps(o, result, b)) return AxisType::Of(o.fault().empty() ? TypeKind::kUnproven : TypeKind::kFaulty);
      result.uneven = a.uneven || b.uneven;
      return result;
    }
    return o.Fault(
        a.dim == row && b.dim == column
            ? std::string("the rows of one matrix and the columns of the other matrix are sharded; each rank "
                          "would compute only one block of the result")
            : Phrase("the left operand is sharded along dim ", a.dim) +
                  Phrase(" and the right operand along dim ", b.dim, "; a product has no layout for this combination"));
  }
  const AxisType& cut = a.is_shard() ? a : b;
  const AxisType& full = a.is_shard() ? b : a;
  AxisType result = product(cut);
  if (cut.dim < batch) {
    if (full.uniform_along(cut.dim)) return result;
    return o.Fault("a sharded batch of matrices is multiplied with a replicated batch");
  }
  if (a.is_shard() ? a.dim == inner : b.dim == row) {
    if (full.uniform_along(a.is_shard() ? row : inner)) return AxisType::Partial();
    return o.Fault(a.is_shard() ? "the contracted dim is sharded in the left operand but not in the right operand"
                                : "the contracted dim is sharded in the right operand but not in the left operand");
  }
  result.dim = a.is_shard() ? row : column;
  return result;
}

AxisTypes MatMul(Operands& o) { return {Product(o, o.type(0), o.type(1), 0)}; }
AxisTypes BatchMatMul(Operands& o) { return {Product(o, o.type(0), o.type(1), 1)}; }

// beta bias + alpha a b.
AxisTypes AddMatMul(Operands& o) {
  const AxisType product = Product(o, o.type(1), o.type(2), o.name() == "baddbmm" ? 1 : 0);
  if (!product.is_known()) return {product};
  const c10::IValue& beta = o.argument(o.Named("beta"));
  if (beta.isScalar() && beta.toScalar().equal(0)) return {product};  // the bias is not read
  if (product.is_partial() && o.type(0).is_replicate() && !o.type(0).zero) {
    return {o.Fault(
        "the bias is added to a partial tensor and would be counted once per rank; add the bias after the reduction",
        SuggestedFix::kAddBiasAfter)};
  }
  const Meeting terms[2] = {{&o.type(0), o.sizes(0)}, {&product, o.made()}};
  return {Meet(o, terms, o.made_dims(), Dependence::kLinear)};
}

// [row, inner] x [inner], [inner] x [inner]: the vectors are a matrix of one column, and of one row.
AxisTypes MatVec(Operands& o) {
  const c10::SmallVector<int64_t, 1> as_row = {1};
  return {Product(o, o.dims(0) == 1 ? MapDims(o.type(0), as_row) : o.type(0), o.type(1), 0)};
}

// _grouped_mm(a, b, offs, ...): rows come in groups, one after the other, and group g ends before row offs[g].
//
//   forward             a [rows, inner]   x  b [groups, inner, columns]   [rows, columns]
//   gradient of b       a [inner', rows]  x  b [rows, columns]            [groups, inner', columns]
//   a batch             a [groups, row, inner] x b [groups, inner, column]
//
// Each group is a product of matrices, so features follow the rule of products without the dim of groups. `offs` counts
// rows and groups: if these are sharded and `offs` is global, a rank multiplies rows by matrices of other groups, and a
// contraction over rows group by group is not partial.
AxisTypes GroupedMatMul(Operands& o) {
  const int offs = o.TensorOf(2);
  const bool batch_left = o.dims(0) == 3;
  const bool batch_right = o.dims(1) == 3;
  if (batch_left && batch_right) return {Product(o, o.type(0), o.type(1), 1)};
  if (batch_left || offs < 0)
    return {o.Unproven(batch_left ? "no rule for a left operand of 3 dims and a right operand of 2 dims"
                                  : "no rule without the offsets of the groups")};
  const AxisType& bounds = o.type(static_cast<size_t>(offs));
  const AxisType& left = o.type(0);
  const AxisType& right = o.type(1);
  const int rows = batch_right ? 0 : 1;
  if (bounds.is(TypeKind::kVarying)) return {bounds};
  if (!bounds.is_replicate()) return {o.Unproven("the offsets of the groups are not replicated")};
  if (left.is_shard() && left.dim == rows) {
    return {o.Fault("the rows are sharded, but the offsets of the groups count all rows")};
  }
  if (!batch_right) {
    if (right.is_shard() && right.dim == 0) {
      return {o.Fault("the rows are sharded, but the offsets of the groups count all rows")};
    }
    const c10::SmallVector<int64_t, 2> behind_groups = {1, 2};
    return {MapDims(Product(o, left, right, 0), behind_groups)};
  }
  if (right.is_shard() && right.dim == 0) {
    return {o.Fault("the groups are sharded, but the offsets count all groups")};
  }
  const c10::SmallVector<int64_t, 3> without_groups = {-1, 0, 1};
  return {Product(o, left, MapDims(right, without_groups), 0)};
}

// linalg_solve_triangular(a, b): x with a x = b, or x a = b: the product of b with the inverse of a, each element of
// which depends on all elements of a.
AxisTypes SolveTriangular(Operands& o) {
  const AxisType& a = o.type(0);
  const AxisType& b = o.type(1);
  const auto batch = static_cast<int>(o.dims(0)) - 2;
  const bool left = o.arguments() < 4 || o.argument(3).isNone() || o.Flag(3);
  if (a.is_partial())
    return {o.Fault("a triangular solve with a partial matrix; reduce the matrix first", SuggestedFix::kMakeSum)};
  if (a.local != 0 || b.local != 0) return {o.Unproven("a triangular solve of constants that are as long as a shard")};
  if (o.dims(0) != o.dims(1)) return {o.Unproven("no rule for operands with different numbers of dims")};
  if (a.is_shard() && a.dim >= batch)
    return {o.Fault(
        "the triangular matrix is sharded, but the solution depends on the full matrix; all-gather the matrix first")};
  if (b.is_shard() && b.dim == (left ? batch : batch + 1)) {
    return {o.Fault("the dim along which the triangular system is solved is sharded; all-gather the dim first")};
  }
  return {left ? Product(o, a, b, batch) : Product(o, b, a, batch)};
}

// _trilinear(a, b, c, new dims of a, of b, of c, summed dims, ..): the product of the three, each with new dims of size
// 1 at the places that are given, summed over dims: a bilinear layer and its gradients.
AxisTypes Trilinear(Operands& o) {
  constexpr size_t kNewDims = 3;
  constexpr size_t kSummed = 6;
  c10::SmallVector<AxisType, 3> types;
  c10::SmallVector<c10::SmallVector<int64_t, 5>, 3> sizes;
  for (size_t i = 0; i < 3; ++i) {
    if (o.type(i).floating) return {o.Unproven("the sharded dim of shards of one element is ambiguous")};
    // In a backward they are taken for the shard (operator_checker.cc).
    if (o.type(i).local != 0 && !o.backward()) return {o.Unproven("no rule for constants that are as long as a shard")};
    const std::vector<int64_t> added = o.Ints(kNewDims + i);
    const int64_t dims = o.dims(i) + static_cast<int64_t>(added.size());
    c10::SmallVector<int64_t, 8> to;
    auto& own = sizes.emplace_back(static_cast<size_t>(dims), 1);
    for (int64_t d = 0; d < dims; ++d) {
      if (std::ranges::find(added, d) != added.end()) continue;
      own[static_cast<size_t>(d)] = o.sizes(i)[to.size()];
      to.push_back(d);
    }
    types.push_back(MapDims(o.type(i), to));
  }
  const Meeting factors[3] = {{&types[0], sizes[0]}, {&types[1], sizes[1]}, {&types[2], sizes[2]}};
  AxisType product = OfNewValues(Meet(o, factors, static_cast<int64_t>(sizes[0].size()), Dependence::kMultilinear));
  if (!product.is_shard()) return {product};
  int gone = 0;
  for (const int64_t d : o.Ints(kSummed)) {
    if (d == product.dim) return {AxisType::Partial()};
    gone += d < product.dim ? 1 : 0;
  }
  product.dim -= gone;
  product.behind = -1;
  return {product};
}

}  // namespace

void AddMatmulRules(RuleTable& table) {
  table.AddAten({"_grouped_mm"}, GroupedMatMul);
  table.AddAten({"linalg_solve_triangular"}, SolveTriangular);
  table.AddAten({"mm"}, MatMul);
  table.AddAten({"bmm"}, BatchMatMul);
  table.AddAten({"addmm", "baddbmm"}, AddMatMul);
  table.AddAten({"mv", "dot", "vdot"}, MatVec);
  table.AddAten({"_trilinear"}, Trilinear);
}

}  // namespace moonshard
