// Difference: how far one tensor is from another, for `compare` and `verify`, and how far `verify` lets them be.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {

// The largest absolute difference over the largest absolute value expected, which counts as `least_scale` where it is
// smaller; the difference itself where both are 0, and 0 for empty tensors. Not finite where either tensor is not. The
// shapes are equal.
double RelativeDifference(const at::Tensor& got, const at::Tensor& expected, double least_scale = 0);

// The largest absolute value; 0 for an empty or undefined tensor.
double LargestValue(const at::Tensor& tensor);

// The largest RelativeDifference that passes, and what it is derived from. Sharding changes the order of sums, and each
// sum is rounded in the dtype of computation.
//
// A gradient that is 0 but for rounding, as that of a key's bias is, differs by all of itself. So beside the relative
// difference an absolute one passes for gradients: sqrt(terms) epsilon largest, what a sum of so many terms is off by
// as a rule (Higham, Accuracy and Stability of Numerical Algorithms, 2.8), with the largest of all gradients.
struct Tolerance {
  double relative = 0;
  double epsilon = 0;  // of the coarsest dtype that the step computes or reduces in
  std::string reason;  // "bfloat16", or "--tolerance"
  // The scale that a tensor has at least: what it may differ by absolutely, over `relative`.
  double LeastScale(double largest, int64_t terms) const;
  // "at most 0.0938 (bfloat16)"
  std::string ToText() const;
};

// `given`, else by the coarsest dtype that the step computes or reduces in: 12 times its epsilon, at least 2e-4.
// `type`: of the parameters, as of ParameterType; the plan's precision and keep_dtype may name others.
Tolerance ToleranceOf(const std::optional<double>& given, std::optional<c10::ScalarType> type,
                      const CompiledPlan& plan);

}  // namespace moonshard
