// Operators along one dim that compare or pair its elements: running maxima, the k-th value, the halves of a gated
// linear unit. Each element of the result needs the dim in full; other dims may be sharded.
#include "engine/analysis/types/rule_table.h"
#include "engine/analysis/types/rules/combine.h"

namespace moonshard {
namespace {

// The type of an operator along `dim` of operand 0 that is not linear; faulty if the dim is sharded.
AxisType AlongFull(Operands& o, int64_t dim) {
  const AxisType& type = o.type(0);
  if (type.is_partial())
    return o.Fault(Quoted(o.name(), " of a partial tensor; reduce the tensor first"), SuggestedFix::kMakeSum);
  if (type.is_shard() && type.dim == dim) {
    return o.Fault(
        Quoted(o.name(), Phrase(" along dim ", dim, " covers only the local shard; all-gather the dim first")));
  }
  return OfNewValues(type);
}

// cummax and cummin -> values, indices.
AxisTypes Running(Operands& o) { return {AlongFull(o, o.Dim(1, o.dims(0)))}; }

// kthvalue(x, k, dim, keepdim) -> values, indices, without the dim unless it is kept.
AxisTypes KthValue(Operands& o) {
  const int64_t dim = o.Dim(2, o.dims(0));
  AxisType result = AlongFull(o, dim);
  if (!result.is_shard() || o.made_dims() == o.dims(0)) return {result};
  result.dim -= result.dim > dim ? 1 : 0;
  result.behind = -1;
  return {result};
}

// Whether x is sharded along `dim` in two parts of one length, which are the halves.
bool HasHalves(const Operands& o, size_t x, int64_t dim) {
  const AxisType& type = o.type(x);
  return type.is_shard() && type.dim == dim && type.lead == 1 && type.parts.size() == 2 &&
         type.parts[0] == type.parts[1] && type.length == o.sizes(x)[static_cast<size_t>(dim)];
}

// glu(x, dim): the first half of the dim times the sigmoid of the second. A packed dim of two parts has both halves of
// its elements on each rank.
AxisTypes GatedHalves(Operands& o) {
  const AxisType& type = o.type(0);
  const int64_t dim = o.Dim(1, o.dims(0));
  if (!HasHalves(o, 0, dim)) return {AlongFull(o, dim)};
  AxisType result = OfNewValues(type);
  result.parts.clear();
  result.length = type.length / 2;
  if (type.map != nullptr) result.map = type.map->Taken(0, result.length);
  return {result};
}

// (gradient, x, dim): linear in the gradient. The gradient of x is as x.
AxisTypes GatedHalvesBackward(Operands& o) {
  const AxisType& gradient = o.type(0);
  const AxisType& x = o.type(1);
  const int64_t dim = o.Dim(2, o.dims(1));
  if (x.is_partial())
    return {
        o.Fault("the backward of a nonlinear operator uses a saved tensor that is partial; reduce this tensor first",
                SuggestedFix::kMakeSum)};
  if (x.is_shard() && x.dim == dim) {
    if (!HasHalves(o, 1, dim) || !gradient.is_shard() || gradient.dim != dim || gradient.lead != 1)
      return {o.Fault("the gradient and the input of a gated linear unit are not sharded in the same way")};
    AxisType half = x;
    half.map = x.map == nullptr ? nullptr : x.map->Taken(0, x.length / 2);
    if (!MeetMaps(o, half, gradient))
      return {AxisType::Of(o.fault().empty() ? TypeKind::kUnproven : TypeKind::kFaulty)};
    return {OfNewValues(x)};
  }
  if (gradient.is_shard() && gradient.dim == dim)
    return {o.Fault(Phrase("the backward of a gated linear unit along dim ", dim, " covers only the local shard"))};
  return {OfNewValues(Meet(o, AllOperands(o), o.made_dims(), Dependence::kMultilinear))};
}

}  // namespace

void AddOrderRules(RuleTable& table) {
  table.AddAten({"cummax", "cummin"}, Running);
  table.AddAten({"kthvalue"}, KthValue);
  table.AddAten({"glu"}, GatedHalves);
  table.AddAten({"glu_backward"}, GatedHalvesBackward);
}

}  // namespace moonshard
