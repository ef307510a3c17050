// Pieces of a tensor: cutting this rank's piece out of a whole tensor, and putting a piece back into its place.
#pragma once

#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/plan/pieces.h"

namespace moonshard {

// The sub-block of `whole` that `dims` selects (dims[d]: the indices of dim d in the order in which the piece holds them,
// as LocalIntervals makes them), as a contiguous tensor with storage of its own, without a gradient.
at::Tensor CutPiece(const at::Tensor& whole, std::span<const std::vector<Interval>> dims);

// Writes `piece` to where CutPiece would have taken it from.
void PutPiece(at::Tensor& whole, const at::Tensor& piece, std::span<const std::vector<Interval>> dims);

}  // namespace moonshard
