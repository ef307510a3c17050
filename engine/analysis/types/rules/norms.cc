// Norms in one operator: over the last dims (layer norm), over groups of channels, over the batch.
//
// A norm over the last dims: each row is normalized by its own statistics, so rows may be sharded and the normalized
// dims may not: a rank would normalize by the variance of its shard. In the backward the gradient of the input keeps
// the layout of the rows. The gradients of weight and bias are sums over rows: with sharded rows they are partial,
// which is why a norm on a sequence-parallel residual must declare its parameters shared.
//
// A group norm of [batch, channels, positions...] normalizes each group of channels by itself: batch and channels may
// be sharded, where no group is on two ranks. Whether the groups of a shard are those of the full tensor shows in the
// number of channels of a group at tp=1 (prove/step_sizes.cc). A batch norm normalizes each channel over batch and
// positions: channels may be sharded, and in training nothing else.
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
  const AxisType input = out[0];
  for (AxisType& type : out) {
    if (input.is_shard()) type = AxisType::Partial();
    if (!input.is_known() || input.is(TypeKind::kVarying)) type = input;
  }
  // The gradient of an input that needs none is left out.
  const std::vector<bool> wanted = o.Flags(o.Named("output_mask"));
  if ((wanted.empty() || wanted[0]) && !out.empty()) out[0] = input;
  return out;
}

constexpr int kChannelDim = 1;

// The gradients of an input and of parameters of the channels, as far as they are wanted: `parameters` for the latter.
AxisTypes Wanted(const Operands& o, const AxisType& input, const AxisType& parameters) {
  AxisTypes out;
  const std::vector<bool> wanted = o.Flags(o.Named("output_mask"));
  for (size_t i = 0; i < 3; ++i) {
    if (i < wanted.size() && !wanted[i]) continue;
    out.push_back(i == 0 ? input : parameters);
  }
  return out;
}

AxisType OfChannels(AxisType shard) {
  shard.dim = 0;
  shard.behind = -1;
  return shard;
}

// Whether parameters and statistics of the channels, operands from `first` on with one dim, fit x [batch, channels,
// ...] of this type: shards of the same channels, or replicated. Reports to `o`.
bool ChannelsFit(Operands& o, const AxisType& x, size_t first, int64_t channels) {
  const bool by_channel = x.is_shard() && x.dim == kChannelDim;
  for (size_t i = first; i < o.size(); ++i) {
    const AxisType& type = o.type(i);
    if (o.dims(i) != 1 || o.sizes(i)[0] != channels) continue;
    if (type.is_partial()) {
      o.Fault("the weight or bias of a norm is partial; reduce the weight or bias first", SuggestedFix::kMakeSum);
      return false;
    }
    if (by_channel && type.is_replicate() && !type.uniform_along(0)) {
      o.Fault("the channels are sharded, but the weight or bias of the norm is not", SuggestedFix::kTakeShard);
      return false;
    }
    if (!by_channel && type.is_shard()) {
      o.Fault("the weight or bias of a norm is sharded, but the channels are not sharded");
      return false;
    }
    if (!by_channel || !type.is_shard()) continue;
    AxisType both = OfChannels(x);
    if (!MeetMaps(o, both, type)) return false;
  }
  return true;
}

AxisType Refused(const Operands& o) {
  return AxisType::Of(o.fault().empty() ? TypeKind::kUnproven : TypeKind::kFaulty);
}

// The type of the statistics [batch, groups] of x; faulty if a group is on two ranks.
AxisType OfGroups(Operands& o, const AxisType& x, int64_t groups, int64_t channels) {
  if (!x.is_shard() || x.dim != kChannelDim) return OfNewValues(x);
  const int64_t of_group = groups == 0 ? 1 : channels / groups;
  AxisType result = OfNewValues(x);
  if (x.map == nullptr && of_group > 1 && !o.backward() && !x.of_gradient)
    return o.Unproven("it is not known which channels each rank holds, and so which are in a group");
  if (x.map != nullptr) {
    result.map = x.map->Opened(1, of_group);
    if (result.map == nullptr)
      return o.Fault(Phrase("a norm over groups of ", of_group, " channels, which are on several ranks"));
  }
  result.length = groups;
  result.heads = 0;
  result.parts.clear();
  return result;
}

// (x, weight, bias, batch, channels, positions, groups, eps) -> y, mean, reciprocal of the deviation.
AxisTypes GroupNorm(Operands& o) {
  const AxisType& x = o.type(0);
  if (x.is_partial())
    return {o.Fault("the input of a norm is partial; reduce the input first", SuggestedFix::kMakeSum)};
  if (o.Any(TypeKind::kVarying) || o.Any(TypeKind::kOwnRows)) return {AxisType::Of(TypeKind::kVarying)};
  if (x.is_shard() && x.lead != 1) return {o.Unproven("no rule for a norm of channels that a view has joined")};
  if (x.is_shard() && x.dim > kChannelDim)
    return {o.Fault("a norm over a sharded dim; each rank would normalize by the statistics of its own shard")};
  const int64_t channels = o.sizes(0)[kChannelDim];
  if (!ChannelsFit(o, x, 1, channels)) return {Refused(o)};
  const AxisType statistics = OfGroups(o, x, o.Int(o.Named("group")), channels);
  if (!statistics.is_known()) return {statistics};
  return {OfNewValues(x), statistics, statistics};
}

// Whether the statistics, operands `first` and the one behind, are those of x. Reports to `o`.
bool StatisticsFit(Operands& o, const AxisType& expected, size_t first) {
  for (size_t i = first; i < first + 2 && i < o.size(); ++i) {
    AxisType type = o.type(i);
    if (!type.SameAs(expected)) {
      o.Fault("the statistics of a norm are not sharded as its input");
      return false;
    }
    if (type.is_shard() && !MeetMaps(o, type, expected)) return false;
  }
  return true;
}

// (gradient, x, mean, deviation, weight, batch, channels, positions, groups, wanted): linear in the gradient.
AxisTypes GroupNormBackward(Operands& o) {
  const AxisType& gradient = o.type(0);
  const AxisType& x = o.type(1);
  if (o.Any(TypeKind::kVarying)) return {AxisType::Of(TypeKind::kVarying)};
  if (x.is_partial())
    return {o.Fault("the backward of a norm uses a partial input; reduce the input first", SuggestedFix::kMakeSum)};
  const Meeting meeting[2] = {{&gradient, o.sizes(0)}, {&x, o.sizes(1)}};
  const AxisType input = OfNewValues(Meet(o, meeting, o.dims(1), Dependence::kMultilinear));
  if (!input.is_known()) return {input};
  const int64_t channels = o.sizes(1)[kChannelDim];
  const AxisType statistics = OfGroups(o, x, o.Int(o.Named("group")), channels);
  if (!statistics.is_known() || !StatisticsFit(o, statistics, 2) || !ChannelsFit(o, x, 4, channels)) {
    return {Refused(o)};
  }
  if (input.is_partial()) return Wanted(o, input, input);
  if (!input.is_shard()) return Wanted(o, input, AxisType::Replicate());
  if (input.dim > kChannelDim)
    return {o.Fault("the backward of a norm over a sharded dim covers only the local shard")};
  return Wanted(o, input, input.dim == kChannelDim ? OfChannels(input) : AxisType::Partial());
}

// (x, weight, bias, running mean, running variance, training, momentum, eps) -> y, mean, reciprocal of the deviation.
AxisTypes BatchNorm(Operands& o) {
  const AxisType& x = o.type(0);
  if (x.is_partial())
    return {o.Fault("the input of a norm is partial; reduce the input first", SuggestedFix::kMakeSum)};
  if (o.Any(TypeKind::kVarying) || o.Any(TypeKind::kOwnRows)) return {AxisType::Of(TypeKind::kVarying)};
  if (x.is_shard() && x.lead != 1) return {o.Unproven("no rule for a norm of channels that a view has joined")};
  if (x.is_shard() && x.dim != kChannelDim && o.Flag(o.Named("training")))
    return {o.Fault("a batch norm over a sharded dim; each rank would normalize by the statistics of its own shard")};
  if (!ChannelsFit(o, x, 1, o.sizes(0)[kChannelDim])) return {Refused(o)};
  const AxisType y = OfNewValues(x);
  const AxisType statistics = y.is_shard() && y.dim == kChannelDim ? OfChannels(y) : AxisType::Replicate();
  return {y, statistics, statistics, statistics};
}

// (gradient, x, weight, running mean and variance, mean, deviation, training, eps, wanted): linear in the gradient.
AxisTypes BatchNormBackward(Operands& o) {
  const AxisType& gradient = o.type(0);
  const AxisType& x = o.type(1);
  if (o.Any(TypeKind::kVarying)) return {AxisType::Of(TypeKind::kVarying)};
  if (x.is_partial())
    return {o.Fault("the backward of a norm uses a partial input; reduce the input first", SuggestedFix::kMakeSum)};
  const Meeting meeting[2] = {{&gradient, o.sizes(0)}, {&x, o.sizes(1)}};
  const AxisType input = OfNewValues(Meet(o, meeting, o.dims(1), Dependence::kMultilinear));
  if (!input.is_known()) return {input};
  if (!ChannelsFit(o, x, 2, o.sizes(1)[kChannelDim])) return {Refused(o)};
  if (input.is_partial()) return Wanted(o, input, input);
  if (!input.is_shard()) return Wanted(o, input, AxisType::Replicate());
  if (input.dim == kChannelDim) return Wanted(o, input, OfChannels(input));
  const size_t training = o.Named("train");
  if (training >= o.arguments() || o.Flag(training))
    return {o.Fault("the backward of a batch norm over a sharded dim covers only the local shard")};
  return Wanted(o, input, AxisType::Partial());
}

}  // namespace

void AddNormRules(RuleTable& table) {
  table.AddAten({"native_layer_norm", "_fused_rms_norm"}, Norm);
  table.AddAten({"native_layer_norm_backward", "_fused_rms_norm_backward"}, NormBackward);
  table.AddAten({"native_group_norm"}, GroupNorm);
  table.AddAten({"native_group_norm_backward"}, GroupNormBackward);
  table.AddAten({"native_batch_norm", "_native_batch_norm_legit"}, BatchNorm);
  table.AddAten({"native_batch_norm_backward"}, BatchNormBackward);
}

}  // namespace moonshard
