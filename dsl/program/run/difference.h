// Difference: how far one tensor is from another, for `compare` and `verify`, and how far `verify` lets them be.
#pragma once

#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {

// The largest absolute difference over the largest absolute value expected; the difference itself where that is 0, and 0
// for empty tensors. Not finite where either tensor is not. The shapes are equal.
double RelativeDifference(const at::Tensor& got, const at::Tensor& expected);

// The largest RelativeDifference that passes, and what it is derived from. Sharding changes the order of sums, and each sum
// is rounded in the dtype of computation.
struct Tolerance {
  double relative = 0;
  std::string reason;  // "bfloat16", or "--tolerance"
  // "at most 0.0625 (bfloat16)"
  std::string ToText() const;
};

// `given`, else by the coarsest dtype that the step computes or reduces in: 8 times its epsilon, at least 2e-4. `type`: of
// the parameters, as of ParameterType; the plan's precision and keep_dtype may name others.
Tolerance ToleranceOf(const std::optional<double>& given, std::optional<c10::ScalarType> type,
                      const CompiledPlan& plan);

}  // namespace moonshard
