// Layout: the placement of one tensor on the ranks of one mesh axis (terms: README.md). The set of layouts is closed.
// The gradient of a tensor has the dual layout. In brackets: DTensor's placements of the value and of the gradient.
//   replicate   value: equal on all ranks, in replicated compute   gradient: equal on all ranks  [Replicate, Replicate]
//   shared      value: equal on all ranks, in sharded compute      gradient: partial             [Replicate, Partial]
//   shard(d)    value: shards along dim d (torch.chunk)            gradient: shards along dim d  [Shard(d), Shard(d)]
//   partial     value: a term of the sum over the ranks            gradient: equal on all ranks  [Partial, Replicate]
// `shared` is DTensor's Replicate with grad_placements=[Partial()], as the output of Megatron's f
// (copy_to_tensor_model_parallel_region).
//
// `shared_last(n)` is shared in the last n features and replicate in the features before them (for a projection that
// outputs both).
//
// A shard may declare the structure of its dim: either `heads` (the dim is sharded only between heads; with fewer heads
// than ranks, ranks/heads consecutive ranks hold the same head), or `parts` (a fused dim; each part is sharded by
// itself and may have heads). Alternatively, a shard may have an `owner`: this rank holds the full dim and the other
// ranks an empty shard, as for an expert of a mixture of experts; or it is `zigzag`: each rank holds one early and one
// late chunk of the dim, as Megatron-LM distributes a sequence over context-parallel ranks, so that all ranks have the
// same work in causal attention. On an axis of two factors (cp=2x4) a shard has the inner one, `inner`: tokens in
// zigzag are sharded over the 2 groups of ranks, and then over the 4 ranks of a group as torch.chunk does it; any other
// dim is sharded over the ranks of a group, and the groups have other tokens of it. The layout determines the indices
// that each rank holds: shards.h. Parts without sizes are equal parts of the dim; Sized() sets their sizes when the
// size of the dim is known.
//
// Placement: one layout per mesh axis. A plan that names no axis declares the layout on tp.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/layout/mesh_shape.h"

namespace moonshard {

enum class LayoutKind : uint8_t { kReplicate, kShared, kShard, kPartial };

struct Layout {
  // One part of a fused dim: `size` elements in `heads` heads (0: no heads, sharded as torch.chunk does it). If all
  // parts have size 0, they are equal parts of the dim.
  struct Part {
    int64_t size = 0;
    int64_t heads = 0;
    auto operator<=>(const Part&) const = default;
  };

  LayoutKind kind = LayoutKind::kReplicate;
  int dim = 0;              // of a shard; negative counts from the last
  int64_t heads = 0;        // of a shard without parts: the number of heads in the dim; 0: no heads
  std::vector<Part> parts;  // of a shard: the parts of a fused dim, in order; empty: not fused
  int64_t owner = -1;       // of a shard without heads and parts: the coordinate that holds the full dim; -1: no owner
  int64_t last = 0;         // of shared: only the last `last` features are shared; 0: all
  bool zigzag = false;      // of a shard without heads, parts and owner: an early and a late chunk on each rank
  int64_t inner = 1;        // of a shard on an axis of two factors: the inner one, set by compile; 1: one factor

  static Layout Replicate() { return {}; }
  static Layout Shared() { return {LayoutKind::kShared, 0, 0, {}, -1, 0, false, 1}; }
  static Layout SharedLast(int64_t features) { return {LayoutKind::kShared, 0, 0, {}, -1, features, false, 1}; }
  static Layout Partial() { return {LayoutKind::kPartial, 0, 0, {}, -1, 0, false, 1}; }
  static Layout Shard(int dim, int64_t heads = 0) { return {LayoutKind::kShard, dim, heads, {}, -1, 0, false, 1}; }
  static Layout Zigzag(int dim, int64_t inner = 1) { return {LayoutKind::kShard, dim, 0, {}, -1, 0, true, inner}; }
  static Layout Owned(int dim, int64_t owner) { return {LayoutKind::kShard, dim, 0, {}, owner, 0, false, 1}; }
  static Layout Packed(int dim, std::vector<Part> parts) {
    return {LayoutKind::kShard, dim, 0, std::move(parts), -1, 0, false, 1};
  }

  // A fused dim of `count` equal parts.
  static Layout PackedEqually(int dim, int count) { return Packed(dim, std::vector<Part>(static_cast<size_t>(count))); }

  bool is_shard() const { return kind == LayoutKind::kShard; }
  bool is_shared_last() const { return kind == LayoutKind::kShared && last > 0; }
  // Whether the layout is a shard without heads, parts or owner, not zigzag and on an axis of one factor: sharded as
  // torch.chunk does it.
  bool is_plain_shard() const {
    return is_shard() && heads == 0 && parts.empty() && owner < 0 && !zigzag && inner == 1;
  }
  // Whether the layout has equal parts: parts that all have size 0.
  bool has_equal_parts() const;
  // Returns the layout for a dim of `size` elements, with the sizes of equal parts set. If the number of parts does not
  // divide `size`, the last parts are smaller; compile reports such a layout as an error.
  Layout Sized(int64_t size) const;
  auto operator<=>(const Layout&) const = default;

  // Returns "replicate", "shared", "shared_last(64)", "partial", "shard(0)", "shard(1,zigzag)",
  // "shard(1,zigzag,inner=2)" or "packed(0,[64,32,32])": without heads and owner. This form is used in the JSON of
  // explain.
  std::string ToString() const;
  // As ToString, with heads and owner: "shard(0,heads=8)", "shard(0,owner=3)",
  // "packed(0,[64:heads=8,32:heads=4,32:heads=4])"; "packed(0,2)" for two equal parts. Two layouts are equal if and
  // only if their texts are equal.
  std::string ToText() const;
};

// One layout per mesh axis. If several axes shard the same dim of a parameter, tp shards the dim, and each axis outside
// of it what is left, so that an all-gather over cp and dp_shard gives the tp shard that compute uses.
struct Placement {
  std::array<Layout, kMeshAxisCount> by_axis;  // indexed by MeshAxis

  Placement() = default;  // replicate on every axis
  // A single layout is the tp layout.
  Placement(Layout tp) { (*this)[MeshAxis::kTp] = std::move(tp); }  // NOLINT: implicit on purpose

  Layout& operator[](MeshAxis axis) { return by_axis[static_cast<size_t>(axis)]; }
  const Layout& operator[](MeshAxis axis) const { return by_axis[static_cast<size_t>(axis)]; }
  auto operator<=>(const Placement&) const = default;

  // Whether the layout is replicate on every axis except tp.
  bool only_tp() const;
  // Returns the text of the tp layout if only_tp(); else "{dp_shard: shard(0), tp: shard(1)}".
  std::string ToText() const;
};

}  // namespace moonshard
