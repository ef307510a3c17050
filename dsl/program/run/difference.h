// Difference: how far one tensor is from another, for `compare` and `verify`.
#pragma once

#include <ATen/core/Tensor.h>

namespace moonshard {

// The largest absolute difference over the largest absolute value expected; the difference itself where that is 0, and 0
// for empty tensors. Not finite where either tensor is not. The shapes are equal.
double RelativeDifference(const at::Tensor& got, const at::Tensor& expected);

}  // namespace moonshard
