// Norms over the last dims in one operator.
//
// Each row is normalized by its own statistics, so rows may be sharded and the normalized dims may not: a rank would
// normalize by the variance of its shard. In the backward the gradient of the input keeps the layout of the rows. The
// gradients of weight and bias are sums over rows: with sharded rows they are partial, which is why a norm on a
// sequence-parallel residual must declare its parameters shared.
#include "engine/analysis/types/rule_table.h"
#include "engine/analysis/types/rules/combine.h"

namespace moonshard {
namespace {

// x [..., normalized dims] with `last` of them: whether the normalized dims are full.
bool Full(Operands& o, size_t x, size_t last) {
  return !o.type(x).is_shard() || o.type(x).dim < o.dims(x) - static_cast<int64_t>(last);
}

// (x, shape, weight, bias, eps) -> y, statistics...
AxisTypes Norm(Operands& o) {
  const AxisType& x = o.type(0);
  if (x.is_partial())
    return {o.Fault("the input of a norm is partial; reduce the input first", SuggestedFix::kMakeSum)};
  if (!Full(o, 0, o.Ints(1).size()))
    return {o.Fault("a norm over a sharded dim; each rank would normalize by the statistics of its own shard")};
  for (size_t i = 1; i < o.size(); ++i) {
    if (o.type(i).is_partial())
      return {
          o.Fault("the weight or bias of a norm is partial; reduce the weight or bias first", SuggestedFix::kMakeSum)};
    if (o.type(i).is_shard())
      return {o.Fault("the weight or bias of a norm is sharded, but the normalized dims are not sharded")};
  }
  if (o.Any(TypeKind::kVarying) || o.Any(TypeKind::kOwnRows)) return {AxisType::Of(TypeKind::kVarying)};
  return {OfNewValues(x)};
}

// (gradient, x, shape, statistics..., weight, ...) -> gradients of x, weight, bias. Linear in the gradient.
AxisTypes NormBackward(Operands& o) {
  const AxisType& gradient = o.type(0);
  const AxisType& x = o.type(1);
  if (x.is_partial())
    return {o.Fault("the backward of a norm uses a partial input; reduce the input first", SuggestedFix::kMakeSum)};
  AxisTypes out(o.products(), AxisType::Replicate());
  if (gradient.is_partial()) {
    if (!x.is_replicate())
      return {
          o.Fault("a partial gradient is combined with tensors that differ between ranks; reduce the gradient first",
                  SuggestedFix::kMakeSum)};
    for (AxisType& type : out) type = gradient;
    return out;
  }
  if (o.Any(TypeKind::kVarying)) return AxisTypes(o.products(), AxisType::Of(TypeKind::kVarying));
  const Meeting meeting[2] = {{&gradient, o.sizes(0)}, {&x, o.sizes(1)}};
  out[0] = Meet(o, meeting, o.dims(1), Dependence::kAny);
  out[0].uniform = 0;
  // The weight is the same for every row: with sharded rows its gradient is partial.
  for (size_t i = 1; i < out.size(); ++i) {
    if (out[0].is_shard()) out[i] = AxisType::Partial();
    if (!out[0].is_known() || out[0].is(TypeKind::kVarying)) out[i] = out[0];
  }
  return out;
}

}  // namespace

void AddNormRules(RuleTable& table) {
  table.AddAten({"native_layer_norm", "_fused_rms_norm"}, Norm);
  table.AddAten({"native_layer_norm_backward", "_fused_rms_norm_backward"}, NormBackward);
}

}  // namespace moonshard
