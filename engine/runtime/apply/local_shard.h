// LocalShard: what a rank holds of a parameter when a plan is applied, and the copies between full tensors and shards.
// Stage before: applied_plan.cc, which knows the parameters. Stage after: the model, whose tensors become the shards.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "engine/layout/shards.h"
#include "engine/runtime/apply/applied_plan.h"

namespace moonshard {

// This rank's shard as a copy on the mesh's device (on the CPU if the plan offloads it). Undefined if the parameter is
// full on this rank and already there. For a parameter on the meta device: uninitialized storage of the local shape, in
// `deferred_type` if that is set and the parameter is floating-point.
at::Tensor LocalShard(const LiveParameter& parameter, const CompiledPlan& plan, const DeviceMesh& mesh,
                      const std::optional<c10::ScalarType>& deferred_type);

// The sub-block of `full` that `dims` selects (dims[d]: the indices of dim d in the order of the shard, as
// LocalIntervals makes them), as a contiguous tensor with storage of its own, without a gradient.
at::Tensor SliceShard(const at::Tensor& full, std::span<const std::vector<Interval>> dims);

// The inverse of SliceShard: copies `shard` into the sub-block of `full` that `dims` selects.
void PutShard(at::Tensor& full, const at::Tensor& shard, std::span<const std::vector<Interval>> dims);

}  // namespace moonshard
