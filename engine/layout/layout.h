// Layout: how one tensor is placed on the ranks of one mesh axis; the closed algebra of the engine (terms: README.md).
// The gradient of a layout has the dual layout. In brackets the placements of DTensor for both:
//   replicate   value: the same, used the same everywhere   gradient: the same everywhere       [Replicate, Replicate]
//   shared      value: the same, used by sharded compute    gradient: partial, must be summed   [Replicate, Partial]
//   shard(d)    value: shards along dim d (torch.chunk)     gradient: shards                    [Shard(d), Shard(d)]
//   partial     value: the sum over the ranks               gradient: the same everywhere       [Partial, Replicate]
// `shared` is Replicate with grad_placements=[Partial()], as after Megatron's f (copy_to_tensor_model_parallel_region).
//
// `shared_last(n)` is shared in its last n features and replicate in those before (a projection that makes both).
//
// A shard may declare the structure of its dim: `heads` (sharded only between heads; with fewer heads than ranks each
// head is on axis/heads consecutive ranks) and `parts` (a fused dim, each part sharded by itself); or that one rank,
// the `owner`, holds all of the dim and the others an empty shard (an expert among experts). The layout determines the
// indices that each rank holds: shards.h. Parts without sizes are equal, and divide the dim; Sized() gives them their
// sizes once the dim is known.
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
  // One part of a fused dim: `size` elements made of `heads` heads (0: sharded anywhere, as torch.chunk). Where all
  // parts have size 0 they are equal parts of whatever size the dim has.
  struct Part {
    int64_t size = 0;
    int64_t heads = 0;
    auto operator<=>(const Part&) const = default;
  };

  LayoutKind kind = LayoutKind::kReplicate;
  int dim = 0;              // of a shard; negative counts from the last
  int64_t heads = 0;        // of a shard without parts: the dim is this many heads; 0: none
  std::vector<Part> parts;  // of a shard: the dim is these parts, one after the other; empty: one plain dim
  int64_t owner = -1;       // of a shard without heads and parts: the coordinate that holds all; -1: every rank a shard
  int64_t last = 0;         // of shared: only the last `last` features are shared; 0: all

  static Layout Replicate() { return {}; }
  static Layout Shared() { return {LayoutKind::kShared, 0, 0, {}, -1, 0}; }
  static Layout SharedLast(int64_t features) { return {LayoutKind::kShared, 0, 0, {}, -1, features}; }
  static Layout Partial() { return {LayoutKind::kPartial, 0, 0, {}, -1, 0}; }
  static Layout Shard(int dim, int64_t heads = 0) { return {LayoutKind::kShard, dim, heads, {}, -1, 0}; }
  static Layout Owned(int dim, int64_t owner) { return {LayoutKind::kShard, dim, 0, {}, owner, 0}; }
  static Layout Packed(int dim, std::vector<Part> parts) {
    return {LayoutKind::kShard, dim, 0, std::move(parts), -1, 0};
  }

  // A fused dim of `count` equal parts.
  static Layout PackedEqually(int dim, int count) { return Packed(dim, std::vector<Part>(static_cast<size_t>(count))); }

  bool is_shard() const { return kind == LayoutKind::kShard; }
  bool is_shared_last() const { return kind == LayoutKind::kShared && last > 0; }
  // A shard without heads, parts or owner, as of torch.chunk.
  bool is_plain_shard() const { return is_shard() && heads == 0 && parts.empty() && owner < 0; }
  // Whether it has parts whose sizes follow from the dim.
  bool has_equal_parts() const;
  // The layout for a dim of `size` elements: equal parts get their sizes. If they do not divide it, which compile
  // refuses, the last ones are smaller.
  Layout Sized(int64_t size) const;
  auto operator<=>(const Layout&) const = default;

  // "replicate", "shared", "shared_last(64)", "partial", "shard(0)", "packed(0,[64,32,32])": the form that JSON
  // has.
  std::string ToString() const;
  // As ToString, with the rest: "shard(0,heads=8)", "shard(0,owner=3)", "packed(0,[64:heads=8,32:heads=4,32:heads=4])";
  // "packed(0,2)" for two equal parts. Two layouts are equal if and only if these are.
  std::string ToText() const;
};

// One layout per mesh axis. Where both axes shard one tensor dim, tp shards the dim and dp_shard then shards each tp
// shard, so that an all-gather over dp_shard gives the tp shard, on which compute works.
struct Placement {
  std::array<Layout, kMeshAxisCount> by_axis;  // indexed by MeshAxis

  Placement() = default;                                            // replicate on every axis
  Placement(Layout tp) { (*this)[MeshAxis::kTp] = std::move(tp); }  // NOLINT: a layout alone is about tp

  Layout& operator[](MeshAxis axis) { return by_axis[static_cast<size_t>(axis)]; }
  const Layout& operator[](MeshAxis axis) const { return by_axis[static_cast<size_t>(axis)]; }
  auto operator<=>(const Placement&) const = default;

  // Whether every axis but tp has replicate.
  bool only_tp() const;
  // The tp layout's text where only_tp(); else "{dp_shard: shard(0), tp: shard(1)}".
  std::string ToText() const;
};

}  // namespace moonshard
