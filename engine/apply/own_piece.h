// OwnPiece: what a rank holds of a parameter when a plan is applied.
// Stage before: applied_plan.cc, which knows the parameters. Stage after: the model, whose tensors become the pieces.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "engine/apply/applied_plan.h"

namespace moonshard {

// This rank's piece, on the device where it belongs; undefined where the tensor can stay as it is. Of a parameter that was
// made without storage: storage without values, of `deferred_type` where that is said and the parameter is of floating
// point.
at::Tensor OwnPiece(const LiveParameter& parameter, const CompiledPlan& plan, const DeviceMesh& mesh,
                    const std::optional<c10::ScalarType>& deferred_type);

}  // namespace moonshard
