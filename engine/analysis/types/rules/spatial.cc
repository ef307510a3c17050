// Operators on planes of positions: pooling, interpolation and padding of [batch, channels, positions...], where each
// plane of a channel is computed by itself; and rearrangements of channels (pixel_shuffle, channel_shuffle).
//
// Shards of the batch and of the channels pass through. A position is computed from its neighbours, which another rank
// may hold: shards along positions are unproven, because kernel, stride and scale decide whether they are sufficient.
// All but the maxima are linear, so that a partial tensor stays partial.
#include <string_view>

#include "engine/analysis/types/rule_table.h"
#include "engine/analysis/types/rules/combine.h"

namespace moonshard {
namespace {

// The number of dims of positions, from the name: "avg_pool2d" has 2.
int64_t PositionDims(std::string_view name) {
  for (const int64_t dims : {1, 2, 3}) {
    if (name.find(std::to_string(dims) + "d") != std::string_view::npos) return dims;
  }
  return 2;
}

bool IsAlongPositions(const Operands& o, const AxisType& type) {
  return type.is_shard() && type.dim >= o.made_dims() - PositionDims(o.name());
}

// Operand 0 (forward: the planes; backward: their gradient) and, in a backward, the planes and the positions of maxima.
AxisType Planes(Operands& o, bool linear) {
  const bool backward = o.name().ends_with("_backward");
  if (o.type(0).is_partial() && !linear && !backward) {
    return o.Fault(Quoted(o.name(), " of a partial tensor; reduce the tensor first"), SuggestedFix::kMakeSum);
  }
  // Of linear operators the backward reads the sizes of the planes alone.
  c10::SmallVector<Meeting, 4> meeting;
  for (size_t i = 0; i < o.size(); ++i) {
    if (i == 0 || !o.type(i).is_partial()) {
      meeting.push_back({&o.type(i), o.sizes(i)});
    } else if (!linear) {
      return o.Fault(
          "the backward of a nonlinear operator uses a saved tensor that is partial; reduce this tensor first",
          SuggestedFix::kMakeSum);
    }
  }
  AxisType result = OfNewValues(Meet(o, meeting, o.made_dims(), Dependence::kMultilinear));
  if (IsAlongPositions(o, result)) return o.Unproven("no rule for planes whose positions are sharded");
  return result;
}

AxisTypes LinearPlanes(Operands& o) { return {Planes(o, true)}; }

// Maxima and the positions where they are, which count within a plane; and their gradient, which is linear.
AxisTypes Maxima(Operands& o) { return {Planes(o, false)}; }

// [.., channels * r * r, height, width] -> [.., channels, height * r, width * r], and back.
AxisTypes PixelShuffle(Operands& o) {
  AxisType result = OfNewValues(o.type(0));
  if (!result.is_shard()) return {result};
  const int channels = static_cast<int>(o.dims(0)) - 3;
  if (result.dim > channels) return {o.Unproven("no rule for planes whose positions are sharded")};
  if (result.dim < channels) return {result};
  if (result.lead != 1 || result.floating) return {o.Unproven("no rule for shuffled channels that a view has made")};
  const int64_t factor = o.Int(1) * o.Int(1);
  const bool joins = o.name() == "pixel_shuffle";
  if (joins && result.map == nullptr && !o.backward() && !result.of_gradient)
    return {o.Unproven("it is not known which channels each rank holds, and so which are in a plane")};
  if (result.map != nullptr) {
    result.map = joins ? result.map->Opened(1, factor) : result.map->Flattened(1, factor);
    if (result.map == nullptr && joins) {
      return {o.Fault(Phrase("the channels of one plane are on several ranks: a plane has ", factor, " channels"))};
    }
  }
  for (int64_t& part : result.parts) {
    if (joins && part % factor != 0) return {o.Fault("the channels of one plane are in several fused parts")};
    part = joins ? part / factor : part * factor;
  }
  result.length = joins ? result.length / factor : result.length * factor;
  result.heads = 0;
  result.inner = 1;
  result.behind = -1;
  return {result};
}

// channels [groups, n] -> [n, groups].
AxisTypes ChannelShuffle(Operands& o) {
  AxisType result = OfNewValues(o.type(0));
  if (result.is_shard() && result.dim == 1) return {o.Unproven("no rule for shuffled channels that are sharded")};
  return {result};
}

}  // namespace

void AddSpatialRules(RuleTable& table) {
  table.AddAten({"avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "reflection_pad1d",
                 "reflection_pad2d", "reflection_pad3d", "replication_pad1d", "replication_pad2d", "replication_pad3d",
                 "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_linear1d",
                 "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d"},
                LinearPlanes);
  table.AddAten({"avg_pool2d_backward", "avg_pool3d_backward", "_adaptive_avg_pool2d_backward",
                 "_adaptive_avg_pool3d_backward", "reflection_pad1d_backward", "reflection_pad2d_backward",
                 "reflection_pad3d_backward", "replication_pad1d_backward", "replication_pad2d_backward",
                 "replication_pad3d_backward", "upsample_nearest1d_backward", "upsample_nearest2d_backward",
                 "upsample_nearest3d_backward", "upsample_linear1d_backward", "upsample_bilinear2d_backward",
                 "upsample_bicubic2d_backward", "upsample_trilinear3d_backward"},
                LinearPlanes);
  table.AddAten(
      {"max_pool2d_with_indices", "max_pool3d_with_indices", "adaptive_max_pool2d", "max_pool2d_with_indices_backward",
       "max_pool3d_with_indices_backward", "adaptive_max_pool2d_backward"},
      Maxima);
  table.AddAten({"pixel_shuffle", "pixel_unshuffle"}, PixelShuffle);
  table.AddAten({"channel_shuffle", "native_channel_shuffle"}, ChannelShuffle);
}

}  // namespace moonshard
