// GradientScale: by which factor a program has scaled its gradients between a backward and the next call of the model.
//
// Clipping by a norm multiplies all gradients by one number, which must be the same on every rank. LibTorch's
// clip_grad_norm_ computes it from the shards of one rank, and writes through grad().data(), which leaves no trace in
// the gradient's version. What it does leave is a ratio. Internal to this directory.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/runtime/apply/applied_plan.h"

namespace moonshard {

class GradientScale {
 public:
  // The parameters that it observes: up to 8 of those that train, spread over the model. The same on every rank.
  explicit GradientScale(const AppliedPlan& model);

  // Keeps, of each gradient that is there, the tensor and a copy of up to 256 elements spread over it. Call it when a
  // backward has ended. Keeping the tensor delays the release of its memory to the next Factors or Keep.
  void Keep();

  // For each of `parameters()`: the factor between the elements that Keep copied and those of the kept tensor now, and
  // drops both. nullopt: there is no gradient, all of its elements were set to zero, fewer than 8 different magnitudes
  // were copied, or the elements have not changed by one factor (a clipping by value, a backward that was added).
  // Copies elements on a GPU to the host.
  std::vector<std::optional<double>> Factors();

  // Indices into AppliedPlan::parameters(), ascending.
  const std::vector<size_t>& parameters() const { return parameters_; }
  // The largest relative difference of two factors of parameter `i` of parameters() that rounding can make: that of its
  // gradient's dtype, 16 units in the last place.
  double Tolerance(size_t i) const;

 private:
  struct Kept {
    at::Tensor gradient;
    at::Tensor elements;
  };
  const AppliedPlan& model_;
  std::vector<size_t> parameters_;
  std::vector<Kept> kept_;
};

}  // namespace moonshard
