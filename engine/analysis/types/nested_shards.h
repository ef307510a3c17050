// NestedShards: the type of a tensor along one mesh axis, if another axis shards the same dim. tp and cp shard the
// features of attention under context parallelism, and the sequence under sequence parallelism besides. A type along an
// axis is about the tensor that the ranks of this axis hold together, the coordinates along other axes being equal. So
// if another axis begins to shard the dim, the full dim of the type becomes shorter, and longer if that axis gathers
// it:
//
//   8 features on 2 ranks of tp          and then on 2 ranks of cp, on the first rank of cp
//   rank 0 holds 0..3, rank 1 4..7       features 0..1 and 4..5: rank 0 holds 0..1, rank 1 2..3, of 4 indices
//
// The gathered dim is in order, or in zigzag as it was, only if the axis that gathers sharded it last. compile has one
// order for each dim (plan/compile/context_parallel.h): of activations [batch, sequence, features], tp shards the
// features before any other axis does, and the outermost axis shards the sequence first.
// Stage before: checker_regions.cc, which passes what a region redistributed. Stage after: the type of its output.
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

#include "engine/analysis/types/axis_type.h"
#include "engine/layout/layout.h"
#include "engine/layout/mesh_shape.h"

namespace moonshard {

// A redistribution of a tensor along one axis, on one rank.
struct MovedAlong {
  MeshAxis axis = MeshAxis::kTp;
  int64_t ranks = 1;
  int64_t rank = 0;  // the coordinate of this rank along the axis
  Layout from;
  Layout to;
  bool inner = false;  // along the inner factor of the axis whose outer factor has the type
};

// The ranks of an axis that shards the same dim between the axis of a type and that of a redistribution: the inner
// factor of cp, if the type is along its outer factor and tp shards the tokens again.
struct ShardedBetween {
  int64_t ranks = 1;
  int64_t rank = 0;
};

// Returns the type along `axis`, on which this rank is `rank`, after the redistribution `moved` along another axis has
// changed the local sizes of the tensor from `before` to `after`. `type` is the type before; it is returned unchanged
// if it is no shard, or if its dim keeps its size. `zigzag`: whether `axis` shards the sequence in zigzag, which the
// parts that another axis has left of it do not tell. Returns nullopt if it is not known which indices each rank holds
// after the redistribution: the tensor is not an activation of three dims, the axes shard the dim in another order than
// that of compile, or the shards do not divide evenly. Between the two factors of one axis the tensor may have any
// dims.
std::optional<AxisType> TypeBeside(const AxisType& type, MeshAxis axis, int64_t rank, const MovedAlong& moved,
                                   at::IntArrayRef before, at::IntArrayRef after, bool zigzag = false,
                                   const ShardedBetween& between = {});

}  // namespace moonshard
