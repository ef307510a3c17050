// TypedTensor: the type of a tensor, kept with the tensor itself, so that tensors that autograd saves still have
// theirs.
// Stage before: axis_type.h. Stage after: operator_checker.h.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "engine/analysis/types/axis_type.h"

namespace moonshard {

// Sets the type of the tensor's current values; a later write through another tensor of the same memory makes the type
// void.
// `version`: the value of the tensor's version counter that the type holds for; -1: the current one. `rises`: autograd
// is about to increment the counter once, and the type holds after that too.
void SetType(const at::Tensor& tensor, TensorType type, int64_t version = -1, bool rises = false);
// Null if it has none, or its memory was written to since.
const TensorType* TypeOf(const at::Tensor& tensor);

int64_t VersionOf(const at::Tensor& tensor);

}  // namespace moonshard
