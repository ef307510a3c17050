// AddLowRank: the term of an adapter beside a matrix product (LoRA, arxiv.org/abs/2106.09685). Used by linear.h and by
// exported programs.
#pragma once

#include <ATen/core/Tensor.h>

#include "engine/runtime/nn/boundary.h"

namespace moonshard::nn {

// made [..., out], the result of a layer for `input` [..., in] -> made + scale (drop(input) A^T) B^T. The term is
// computed in the dtype of A and B, and added in the dtype of `made`. `training`: whether elements are dropped. A and B
// without elements, on a rank that does not own the weight, add a term of zeros; such a rank draws as many random
// numbers for drop() as the owner.
at::Tensor AddLowRank(const at::Tensor& made, const at::Tensor& input, const LowRank& term, bool training);

}  // namespace moonshard::nn
