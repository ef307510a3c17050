// The type of a tensor, kept with the tensor itself, so that what autograd saved for its backward still has it.
// Stage before: axis_type.h. Stage after: operator_checker.h.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "engine/analysis/types/axis_type.h"

namespace moonshard {

// Gives it a type as it is now; what writes into it later through another tensor of the same memory makes the type void.
// `version`: of its counter of writes, -1: to be read here. `rises`: autograd is about to raise it by one.
void SetType(const at::Tensor& tensor, TensorType type, int64_t version = -1, bool rises = false);
// null where it has none, or its memory was written to since.
const TensorType* TypeOf(const at::Tensor& tensor);

int64_t VersionOf(const at::Tensor& tensor);

}  // namespace moonshard
