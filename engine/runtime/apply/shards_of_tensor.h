// Shards of a tensor: slicing this rank's shard out of a full tensor, and putting a shard back into its place.
#pragma once

#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/layout/shards.h"

namespace moonshard {

// The sub-block of `full` that `dims` selects (dims[d]: the indices of dim d in the order in which the shard holds
// them, as LocalIntervals makes them), as a contiguous tensor with storage of its own, without a gradient.
at::Tensor SliceShard(const at::Tensor& full, std::span<const std::vector<Interval>> dims);

// Writes `shard` to where SliceShard takes it from.
void PutShard(at::Tensor& full, const at::Tensor& shard, std::span<const std::vector<Interval>> dims);

}  // namespace moonshard
