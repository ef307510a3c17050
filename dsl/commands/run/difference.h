// Difference: measures how much one tensor differs from another, for `compare` and `verify`, and which difference
// `verify` accepts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {

// The largest absolute difference divided by the largest absolute expected value, or by `least_scale` if that is
// larger. The absolute difference if both divisors are 0, and 0 for empty tensors. Not finite if either tensor has a
// value that is not finite. The shapes must be equal.
double RelativeDifference(const at::Tensor& got, const at::Tensor& expected, double least_scale = 0);

// The largest absolute value; 0 for an empty or undefined tensor.
double LargestValue(const at::Tensor& tensor);

// The largest RelativeDifference that passes, and what it is derived from. Sharding changes the order of sums, and each
// sum is rounded in the dtype of computation.
//
// A gradient that is 0 except for rounding, like the gradient of a key's bias, has a relative difference of about 1.
// Gradients therefore also pass with an absolute difference of sqrt(terms) * epsilon * largest, the usual rounding
// error of a sum of that many terms (Higham, Accuracy and Stability of Numerical Algorithms, 2.8), where `largest` is
// the largest value of all gradients.
struct Tolerance {
  double relative = 0;
  double epsilon = 0;  // of the coarsest dtype that the step computes or reduces in
  std::string reason;  // "bfloat16", or "--tolerance"
  // The `least_scale` of RelativeDifference for this absolute difference: the absolute difference divided by
  // `relative`.
  double LeastScale(double largest, int64_t terms) const;
  // "at most 0.0938 (bfloat16)"
  std::string ToText() const;
};

// Returns the tolerance `given`, else 12 times the epsilon of the coarsest dtype in which the step computes or reduces,
// at least 2e-4. `type`: the dtype of the parameters (ParameterType); the plan's precision, keep_dtype and adapters may
// add others.
Tolerance ToleranceOf(const std::optional<double>& given, std::optional<c10::ScalarType> type,
                      const CompiledPlan& plan);

}  // namespace moonshard
