// Convolutions: input [batch, channels, positions...], weight [out channels, in channels / groups, kernel...]. Along
// batch and channels a convolution is a product of matrices, summed over the input's channels and the kernel:
//
//   batch sharded           x replicated                      batch sharded
//   replicated              x out channels sharded            channels sharded
//   in channels sharded     x in channels sharded             partial
//   channels sharded        x out channels sharded, groups    channels sharded: each group by itself
//
// A rank may hold one group, whose convolution has no groups: its input has as many channels as its weight. Without
// groups in the full convolution, shards of the input channels would be fewer than those of the weight.
//
// The weight of a transposed convolution is [in channels, out channels / groups, kernel...]; with groups, its shards
// are unproven. A position needs its neighbours, which another rank may hold: shards along positions are unproven,
// because kernel, stride and padding decide whether they are sufficient.
#include "engine/analysis/types/rule_table.h"
#include "engine/analysis/types/rules/combine.h"

namespace moonshard {
namespace {

constexpr int kBatch = 0;
constexpr int kChannels = 1;
constexpr int kOutChannels = 0;  // of the weight
constexpr int kInChannels = 1;   // of the weight

// The cases that a convolution and its two backwards have in common: varying, partial, and replicated operands. Sets
// `done` if one of them applies.
AxisType Common(Operands& o, const AxisType& a, const AxisType& b, bool& done) {
  done = true;
  if (a.is(TypeKind::kVarying) || b.is(TypeKind::kVarying) || a.is(TypeKind::kOwnRows) || b.is(TypeKind::kOwnRows)) {
    return AxisType::Of(TypeKind::kVarying);
  }
  if (a.is_partial() && b.is_partial()) {
    return o.Fault("two partial tensors are multiplied; reduce one of them first", SuggestedFix::kMakeSum);
  }
  if (a.is_partial() || b.is_partial()) {
    if ((a.is_partial() ? b : a).is_replicate()) return a.is_partial() ? a : b;
    return o.Fault("a partial tensor is combined with shards; reduce the partial tensor first", SuggestedFix::kMakeSum);
  }
  if (a.is_replicate() && b.is_replicate()) return AxisType::Replicate();
  if ((a.is_shard() && a.dim > kChannels) || (b.is_shard() && b.dim > kChannels)) {
    return o.Unproven("no rule for a convolution over sharded spatial dims");
  }
  done = false;
  return {};
}

AxisType At(AxisType shard, int dim) {
  shard.dim = dim;
  shard.uniform = 0;
  return shard;
}

// The type of a weight with its first two dims exchanged.
AxisType Transposed(AxisType weight) {
  if (weight.is_shard() && weight.dim <= kInChannels) weight.dim = 1 - weight.dim;
  weight.uniform = 0;
  return weight;
}

// Whether input and weight are sharded as groups are.
bool ShardsGroups(const AxisType& x, const AxisType& weight) {
  return x.is_shard() && weight.is_shard() && x.dim == kChannels && weight.dim == kOutChannels;
}

// Sharded channels, each group by itself. A group is `from` channels of the input and `to` of the output: each rank
// must hold the same groups of both.
AxisType Grouped(Operands& o, const AxisType& x, const AxisType& weight) {
  const int64_t from = o.sizes(1)[kInChannels];
  const int64_t groups = from == 0 ? 0 : o.sizes(0)[kChannels] / from;
  const int64_t to = groups == 0 ? 0 : o.sizes(1)[kOutChannels] / groups;
  AxisType of_input = x;
  AxisType of_output = weight;
  of_output.dim = kChannels;
  const bool known = x.map != nullptr && weight.map != nullptr;
  if (!known && (from > 1 || to > 1) && !o.backward() && !x.of_gradient && !weight.of_gradient)
    return o.Unproven("it is not known which channels each rank holds, and so which are in a group");
  if (x.map != nullptr) of_input.map = x.map->Opened(1, from);
  if (weight.map != nullptr) of_output.map = weight.map->Opened(1, to);
  if (!MeetMaps(o, of_input, of_output)) {
    return AxisType::Of(o.fault().empty() ? TypeKind::kUnproven : TypeKind::kFaulty);
  }
  return At(from == to ? x : weight, kChannels);
}

AxisType Forward(Operands& o, const AxisType& x, const AxisType& weight, bool groups) {
  bool done = false;
  AxisType common = Common(o, x, weight, done);
  if (done) return common;
  if (x.is_shard() && x.dim == kBatch && weight.is_replicate()) return At(x, kBatch);
  if (groups) {
    if (ShardsGroups(x, weight)) return Grouped(o, x, weight);
    return o.Fault("the channel groups are not sharded in the same way in the input and the weight");
  }
  if (x.is_replicate() && weight.dim == kOutChannels) return At(weight, kChannels);
  if (x.is_shard() && weight.is_shard() && x.dim == kChannels && weight.dim == kInChannels) {
    if (x.lead != weight.lead)
      return o.Fault("the input channels are not sharded in the same way in the input and the weight");
    AxisType summed = x;
    if (!MeetMaps(o, summed, weight)) {
      return AxisType::Of(o.fault().empty() ? TypeKind::kUnproven : TypeKind::kFaulty);
    }
    return AxisType::Partial();
  }
  return o.Fault(x.is_shard() && x.dim == kBatch
                     ? "the batch of the input and the channels of the weight are sharded along the same mesh axis"
                     : "the input channels are not sharded in the same way in the input and the weight");
}

// (input, weight, bias?, stride, padding, dilation, transposed, output padding, groups).
AxisTypes Convolution(Operands& o) {
  const AxisType& x = o.type(0);
  const bool transposed = o.Flag(6);
  const AxisType weight = transposed ? Transposed(o.type(1)) : o.type(1);
  if (transposed && o.Int(8, 1) > 1 && !(x.is_replicate() && weight.is_replicate())) {
    return {o.Unproven("no rule for a transposed convolution with groups whose input or weight is not replicated")};
  }
  AxisType product = Forward(o, x, weight, o.Int(8, 1) > 1 || (!transposed && ShardsGroups(x, weight)));
  const int bias = o.TensorOf(2);
  if (bias < 0 || !product.is_known() || product.is(TypeKind::kVarying)) return {product};
  const AxisType& added = o.type(static_cast<size_t>(bias));
  if (product.is_partial()) {
    if (added.is_partial()) return {product};
    return {o.Fault(
        "the bias is added to a partial tensor and would be counted once per rank; shard the output channels, or use a "
        "convolution without a bias and add it after the reduction")};
  }
  const bool by_channel = product.is_shard() && product.dim == kChannels;
  const bool fits = by_channel ? added.is_shard() || added.uniform_along(0) : added.is_replicate();
  if (!fits) return {o.Fault("the bias and the output channels are not sharded in the same way")};
  if (by_channel && added.is_shard() && !MeetMaps(o, product, At(added, kChannels))) {
    return {AxisType::Of(o.fault().empty() ? TypeKind::kUnproven : TypeKind::kFaulty)};
  }
  return {product};
}

// The gradient of the input: summed over the out channels.
AxisType OfInput(Operands& o, const AxisType& gradient, const AxisType& weight, bool groups) {
  bool done = false;
  AxisType common = Common(o, gradient, weight, done);
  if (done) return common;
  if (gradient.is_shard() && gradient.dim == kBatch && weight.is_replicate()) return At(gradient, kBatch);
  if (gradient.is_shard() && weight.is_shard() && gradient.dim == kChannels && weight.dim == kOutChannels) {
    return groups ? At(gradient, kChannels) : AxisType::Partial();
  }
  if (gradient.is_replicate() && weight.dim == kInChannels && !groups) return At(weight, kChannels);
  return o.Fault("the gradient and the weight are not sharded in the same way");
}

// The gradient of the weight: summed over batch and positions.
AxisType OfWeight(Operands& o, const AxisType& gradient, const AxisType& x, bool groups) {
  bool done = false;
  AxisType common = Common(o, gradient, x, done);
  if (done) return common;
  if (gradient.is_shard() && x.is_shard()) {
    if (gradient.dim == kBatch && x.dim == kBatch) return AxisType::Partial();
    if (groups && gradient.dim == kChannels && x.dim == kChannels) return At(gradient, kOutChannels);
    return o.Fault("the gradient and the input are sharded along different dims");
  }
  if (gradient.is_shard() && gradient.dim == kChannels && !groups) return At(gradient, kOutChannels);
  if (x.is_shard() && x.dim == kChannels && !groups) return At(x, kInChannels);
  return o.Fault("the gradient and the input are not sharded in the same way");
}

AxisType OfBias(const AxisType& gradient) {
  if (!gradient.is_shard()) return gradient.is_replicate() ? AxisType::Replicate() : gradient;
  return gradient.dim == kChannels ? At(gradient, 0) : AxisType::Partial();
}

// (gradient, input, weight, bias sizes, stride, padding, dilation, transposed, output padding, groups, wanted) -> the
// gradients of input, weight and bias, as far as they are wanted.
AxisTypes ConvolutionBackward(Operands& o) {
  const AxisType& gradient = o.type(0);
  const AxisType& x = o.type(1);
  const bool transposed = o.Flag(7);
  const AxisType weight = transposed ? Transposed(o.type(2)) : o.type(2);
  const bool replicated = gradient.is_replicate() && x.is_replicate() && weight.is_replicate();
  if (transposed && o.Int(9, 1) > 1 && !replicated) {
    return {o.Unproven(
        "no rule for the backward of a transposed convolution with groups and operands that are not replicated")};
  }
  const bool groups = o.Int(9, 1) > 1 || (!transposed && ShardsGroups(x, weight));
  const std::vector<bool> wanted = o.Flags(10);
  AxisTypes out;
  if (wanted.size() != 3 || wanted[0]) out.push_back(OfInput(o, gradient, weight, groups));
  if (wanted.size() != 3 || wanted[1]) {
    const AxisType of_weight = OfWeight(o, gradient, x, groups);
    out.push_back(transposed ? Transposed(of_weight) : of_weight);
  }
  if (wanted.size() != 3 || wanted[2]) out.push_back(OfBias(gradient));
  return out;
}

}  // namespace

void AddConvolutionRules(RuleTable& table) {
  table.AddAten({"convolution", "convolution_overrideable"}, Convolution);
  table.AddAten({"convolution_backward", "convolution_backward_overrideable"}, ConvolutionBackward);
}

}  // namespace moonshard
