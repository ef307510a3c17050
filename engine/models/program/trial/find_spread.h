// FindSpread: which elements of a full tensor the tensors of the ranks are, by their values. Internal to
// engine/models/program/trial.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/models/program/trial/spread.h"

namespace moonshard::trial {

// A result of an operator on one set of made-up operands.
struct Draw {
  at::Tensor full;
  std::vector<at::Tensor> local;  // by rank
  at::Tensor lacking;             // what is to be added to the ranks' tensor to give `full`; undefined: nothing
};

// Returns whether two tensors have the same shape, dtype and values, up to the rounding of operators in this dtype. A
// NaN is equal to a NaN.
bool Near(const at::Tensor& a, const at::Tensor& b);

// The largest difference of two tensors relative to the largest value of `full`; nullopt if the shapes differ.
std::optional<double> Difference(const at::Tensor& full, const at::Tensor& other);

// Returns the spread with which the local tensors of all draws are the full ones; nullopt if there is none. Tried in
// this order: every rank has the full tensor; the tensors of the ranks add up to it; they are its slices along the dims
// whose sizes differ, at most two. Slices are first compared with those of `hints`, the spreads of the operands, then,
// along one dim, with consecutive slices, then searched by their values.
std::optional<Spread> FindSpread(const std::vector<Draw>& draws, const std::vector<const Spread*>& hints);

}  // namespace moonshard::trial
