// LocalShard: what a rank holds of a parameter when a plan is applied.
// Stage before: applied_plan.cc, which knows the parameters. Stage after: the model, whose tensors become the shards.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "engine/runtime/apply/applied_plan.h"

namespace moonshard {

// This rank's shard, on the device where it belongs; undefined where the tensor can stay as it is. Of a parameter that was
// made without storage: storage without values, of `deferred_type` where that is set and the parameter is of floating
// point.
at::Tensor LocalShard(const LiveParameter& parameter, const CompiledPlan& plan, const DeviceMesh& mesh,
                      const std::optional<c10::ScalarType>& deferred_type);

}  // namespace moonshard
