// LocalShard: the shard of a parameter that a rank holds when a plan is applied, and copies between full tensors and
// shards.
// Stage before: applied_plan.cc, which lists the parameters. Stage after: the model, whose tensors become the shards.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "engine/layout/shards.h"
#include "engine/runtime/apply/applied_plan.h"

namespace moonshard {

// Returns this rank's shard of `parameter` as a copy on the mesh's device (on the CPU if fsdp offloads it). Returns an
// undefined tensor if the shard is the full tensor and already on that device. For a parameter on the meta device:
// uninitialised storage of the local shape, in `deferred_type` if that is set and the parameter is floating-point.
at::Tensor LocalShard(const LiveParameter& parameter, const CompiledPlan& plan, const DeviceMesh& mesh,
                      const std::optional<c10::ScalarType>& deferred_type);

// Returns the block of `full` that `dims` selects, as a contiguous tensor with its own storage and without autograd
// history. dims[d] lists the indices of dim d in the order of the shard, as LocalIntervals returns them.
at::Tensor SliceShard(const at::Tensor& full, std::span<const std::vector<Interval>> dims);

// The inverse of SliceShard: copies `shard` into the block of `full` that `dims` selects.
void PutShard(at::Tensor& full, const at::Tensor& shard, std::span<const std::vector<Interval>> dims);

}  // namespace moonshard
