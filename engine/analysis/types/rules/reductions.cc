// Reductions along a dim. Over a sharded dim a sum is partial; any other reduction sees only the local shard.
//
// The sum over a dim is the sum of the ranks' sums over their shards, so the result is partial. A mean divides by the
// length of the local shard, so the result is a partial mean, which may not be combined with a partial sum. The shards
// must have the same length: of 7 rows on two ranks, the mean of the means of 4 and 3 rows gives the last rows a higher
// weight. Every other reduction is refused along the sharded dim, although some (a maximum) could be combined over
// ranks: a plan cannot declare such a combination. A softmax along a sharded dim divides by the sum over the local
// shard; the values would look normalized and be too large.
//
// A replicated tensor that is as long as a shard (`local`) has equal elements along that dim, as many on each rank as
// the shard has: its sum is partial, its mean and its maximum are those of the full tensor, and a norm is not. The
// gradient of a mean or a maximum is divided by the number of the elements, which are those of one rank: its sum over
// the dim is the gradient of one element on each rank, and no term, although it is as long as a shard.
#include <algorithm>

#include <c10/core/GradMode.h>

#include "engine/analysis/types/of_owner.h"
#include "engine/analysis/types/rule_table.h"
#include "engine/analysis/types/rules/combine.h"

namespace moonshard {
namespace {

enum class Kind {
  kSum,
  kMean,
  kCount,       // of elements that are not 0
  kOneOf,       // of equal elements, the element: a maximum
  kPositionOf,  // argmax
  kGrows,       // of equal elements other than 0, a number that grows with their number: a norm
  kOther
};

// The indices along `dims` are those of the full tensor: of equal elements the first is taken.
bool AreUniform(const AxisType& type, const std::vector<int64_t>& dims) {
  return !dims.empty() && std::ranges::all_of(dims, [&](int64_t d) { return type.uniform_along(d); });
}

// Reduces a replicated tensor along dims of which at least one is in `local`. `result`: the type that the reduction of
// a tensor of the full size has.
AxisType ReduceLocal(Operands& o, const std::vector<int64_t>& over, const AxisType& result, Kind kind) {
  const bool takes_one = kind == Kind::kMean || kind == Kind::kOneOf;
  if (takes_one && o.needs_gradient(0) && c10::GradMode::is_enabled())
    return o.Unproven(
        Quoted(o.name(), " of values that are as long as a shard and have a gradient, which follows their number"));
  switch (kind) {
    case Kind::kSum:
    case Kind::kCount: return o.type(0).zero ? result : AxisType::Partial();
    case Kind::kMean:
    case Kind::kOneOf: return result;
    case Kind::kPositionOf:
      if (AreUniform(o.type(0), over)) return result;
      return o.Unproven("a position in a constant that is as long as a shard");
    case Kind::kGrows:
      if (o.type(0).zero && o.name() != "logsumexp") return result;
      return o.Fault(Quoted(o.name(),
                            " of a constant that is as long as the local shard depends on the length of the shard; "
                            "make the constant with the size of the full dim"));
    case Kind::kOther: break;
  }
  return o.Unproven(Quoted(o.name(), " of a constant that is as long as a shard"));
}

// Whether the result of a sum is longer at tp=1 along `dim` alone: that of a shard which stays is, that of one which is
// summed has the same sizes.
bool StaysIn(const Operands& o, int dim) {
  const std::vector<int64_t>* alone = o.alone();
  const at::IntArrayRef made = o.made();
  if (alone == nullptr || alone->size() != made.size()) return false;
  for (size_t d = 0; d < made.size(); ++d) {
    if (static_cast<int>(d) == dim ? (*alone)[d] <= made[d] : (*alone)[d] != made[d]) return false;
  }
  return true;
}

// Reduces the dims `over` (empty: all), which keep size 1 if `keep`.
AxisType Reduce(Operands& o, std::vector<int64_t> over, bool keep, Kind kind) {
  const AxisType& type = o.type(0);
  const int64_t dims = o.dims(0);
  for (int64_t& d : over) d = d < 0 ? d + dims : d;
  const auto goes = [&](int64_t d) { return over.empty() || std::ranges::find(over, d) != over.end(); };
  if (type.is_partial()) {
    if (kind == Kind::kSum || kind == Kind::kMean) return type;
    return o.Fault(Quoted(o.name(), " of a partial tensor; reduce the tensor first"), SuggestedFix::kMakeSum);
  }
  if (type.is_shard() && goes(type.dim)) {
    // Both dims of a floating shard would be accepted, so no fault would try the other one.
    AxisType other = type;
    if (type.floating && MoveToNextReading(other, o.sizes(0), o.sizes_compared(), /*terms=*/false) &&
        !goes(other.dim)) {
      const bool summed = kind == Kind::kSum && o.alone() != nullptr && at::IntArrayRef(*o.alone()) == o.made();
      const int dim = other.dim;
      for (int d = 0; d < dim && !keep; ++d) other.dim -= goes(d) ? 1 : 0;
      other.behind = -1;
      if (!summed && kind == Kind::kSum && StaysIn(o, other.dim)) return OfNewValues(std::move(other));
      if (!summed) return o.Unproven("the sharded dim of shards of one element is ambiguous");
    }
    const bool on_owner = type.is_owned() && OwnerOf(type) == o.rank();
    if (kind == Kind::kSum || kind == Kind::kCount) return on_owner ? AxisType::OfOwner(o.rank()) : AxisType::Partial();
    if (kind == Kind::kMean) return MeanOfShards(o, type);
    return o.Fault(
        Quoted(o.name(), Phrase(" over dim ", type.dim, " covers only the local shard; all-gather the dim first")));
  }
  // Slices that are equal have equal results.
  c10::SmallVector<int64_t, 8> to;
  int64_t place = 0;
  for (int64_t d = 0; d < dims; ++d) to.push_back(goes(d) ? (keep ? place++ : -1) : place++);
  AxisType result = type.is_replicate() ? MapDims(type, to) : OfNewValues(type);
  // A sum of zeros is zero, the logarithm of a sum of their exponentials is not.
  result.zero = type.zero && (kind == Kind::kSum || kind == Kind::kMean || kind == Kind::kCount);
  result.behind = -1;
  if (type.is_replicate()) {
    bool local = false;
    for (int64_t d = 0; d < dims; ++d) {
      if (!goes(d)) continue;
      local = local || type.local_along(d);
      if (keep && d < 64) {
        result.uniform |= uint64_t{1} << d;
        result.local &= ~(uint64_t{1} << d);
      }
    }
    if (over.empty()) {
      for (int64_t d = 0; d < dims; ++d) over.push_back(d);
    }
    return local ? ReduceLocal(o, over, result, kind) : result;
  }
  if (type.is_shard() && !keep) {
    for (int64_t d = 0; d < type.dim; ++d) result.dim -= goes(d) ? 1 : 0;
  }
  return result;
}

// (x, dim) -> values, indices. Any of equal elements is the median; which one, the ranks need not agree on.
AxisTypes Median(Operands& o) {
  const AxisType& type = o.type(0);
  const std::vector<int64_t> over = o.Ints(o.Named("dim"));
  const AxisType values = Reduce(o, over, o.Flag(o.Named("keepdim")), Kind::kOneOf);
  if (over.empty() || !type.is_replicate() || !type.local_along(o.Dim(o.Named("dim"), o.dims(0)))) return {values};
  return {values, AxisType::Of(TypeKind::kVarying)};
}

template <Kind kKind>
AxisTypes OverDims(Operands& o) {
  return {Reduce(o, o.Ints(o.Named("dim")), o.Flag(o.Named("keepdim")), kKind)};
}

AxisTypes ForeachNorm(Operands& o) {
  AxisTypes out;
  for (size_t i = 0; i < o.size(); ++i) {
    if (!o.type(i).is_replicate())
      return {o.Fault(Phrase("a norm of a tensor that is not replicated: the tensor is ", o.type(i)))};
    if (o.type(i).local != 0 && !o.type(i).zero) return {o.Unproven("a norm of a constant that is as long as a shard")};
    out.push_back(AxisType::Replicate());
  }
  return out;
}

// A dim that keeps its size, each element computed from all elements along it. `grows`: of equal elements the results
// depend on their number.
AxisType Along(Operands& o, int64_t dim, bool linear, bool grows = true) {
  const AxisType& type = o.type(0);
  if (type.is_partial() && !linear)
    return o.Fault(Quoted(o.name(), " of a partial tensor; reduce the tensor first"), SuggestedFix::kMakeSum);
  if (type.is_shard() && type.dim == dim) {
    return o.Fault(
        Quoted(o.name(), Phrase(" along dim ", dim, " covers only the local shard; all-gather the dim first")));
  }
  if (type.local_along(dim) && !(type.zero && linear)) {
    if (o.name() == "cumprod" || !grows)
      return o.Unproven(Quoted(o.name(), " along a dim of a constant that is as long as a shard"));
    return o.Fault(Quoted(o.name(), Phrase(" along dim ", dim,
                                           " of a constant that is as long as the local shard covers only the local "
                                           "shard; make the constant with the size of the full dim")));
  }
  AxisType result = type;
  result.zero = type.zero && linear;
  if (dim < 64 && !result.zero) {
    result.uniform &= ~(uint64_t{1} << dim);
    result.local &= ~(uint64_t{1} << dim);
  }
  return result;
}

AxisTypes Softmax(Operands& o) { return {Along(o, o.Dim(1, o.dims(0)), false)}; }

AxisTypes Cumulative(Operands& o) { return {Along(o, o.Dim(1, o.dims(0)), o.name() == "cumsum")}; }

// (gradient, output, dim): linear in the gradient.
AxisTypes SoftmaxBackward(Operands& o) {
  const int64_t dim = o.Dim(2, o.dims(0));
  for (size_t i = 0; i < 2; ++i) {
    if (o.type(i).is_shard() && o.type(i).dim == dim) {
      return {o.Fault(Phrase("the backward of a softmax along dim ", dim,
                             " covers only the local shard; all-gather the dim first"))};
    }
  }
  if (o.type(1).is_partial())
    return {
        o.Fault("the backward of a nonlinear operator uses a saved tensor that is partial; reduce this tensor first",
                SuggestedFix::kMakeSum)};
  AxisType result = Meet(o, AllOperands(o), o.made_dims(), Dependence::kMultilinear);
  if (dim < 64) result.uniform &= ~(uint64_t{1} << dim);
  result.local &= result.uniform;
  return {result};
}

// topk, sort and argsort -> values, indices. `dim` is at other places in other overloads.
AxisTypes Order(Operands& o) {
  const size_t dim = o.Named("dim");
  const bool given = dim < o.arguments() && o.argument(dim).isInt();
  const int64_t along = given ? o.Dim(dim, o.dims(0)) : o.dims(0) - 1;
  // Of equal elements the order is any.
  if (o.name() == "sort" && o.type(0).local_along(along)) return {o.type(0), AxisType::Of(TypeKind::kVarying)};
  const AxisType one = Along(o, along, false, /*grows=*/false);
  return {one, one};
}

// A number that the program reads from a tensor.
AxisTypes ReadNumber(Operands& o) {
  for (size_t i = 0; i < o.size(); ++i) {
    if (!o.type(i).is_replicate()) {
      // Autograd's own backwards choose by it between ways to compute the same.
      if (o.backward()) return {o.Unproven("a number is read from a gradient that differs between ranks")};
      return {o.Fault(Phrase("a number is read from a tensor that differs between ranks: the tensor is ", o.type(i)))};
    }
  }
  return {AxisType::Replicate()};
}

}  // namespace

void AddReductionRules(RuleTable& table) {
  table.AddAten({"sum"}, OverDims<Kind::kSum>);
  table.AddAten({"mean"}, OverDims<Kind::kMean>);
  table.AddAten({"count_nonzero"}, OverDims<Kind::kCount>);
  table.AddAten({"amax", "amin", "all", "any", "max", "min", "aminmax"}, OverDims<Kind::kOneOf>);
  table.AddAten({"median", "mode"}, Median);
  table.AddAten({"argmax", "argmin"}, OverDims<Kind::kPositionOf>);
  table.AddAten({"logsumexp", "linalg_vector_norm", "norm"}, OverDims<Kind::kGrows>);
  table.AddAten({"prod", "var", "std", "var_mean", "std_mean"}, OverDims<Kind::kOther>);
  table.AddAten({"_foreach_norm"}, ForeachNorm);
  table.AddAten({"_softmax", "_log_softmax", "_safe_softmax"}, Softmax);
  table.AddAten({"cumsum", "cumprod", "logcumsumexp"}, Cumulative);
  table.AddAten({"_softmax_backward_data", "_log_softmax_backward_data"}, SoftmaxBackward);
  table.AddAten({"topk", "sort", "argsort"}, Order);
  table.AddAten({"_local_scalar_dense", "item", "is_nonzero", "equal"}, ReadNumber);
}

}  // namespace moonshard
