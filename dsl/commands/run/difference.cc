#include "dsl/commands/run/difference.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>

#include <ATen/TensorOperators.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

namespace moonshard {
namespace {

struct Epsilon {
  const char* name;
  c10::ScalarType type;
  double epsilon;
};

// The coarsest first.
const std::array<Epsilon, 4> kEpsilons = {
    Epsilon{"bfloat16", at::kBFloat16, std::numeric_limits<c10::BFloat16>::epsilon()},
    Epsilon{"float16", at::kHalf, std::numeric_limits<c10::Half>::epsilon()},
    Epsilon{"float32", at::kFloat, std::numeric_limits<float>::epsilon()},
    Epsilon{"float64", at::kDouble, std::numeric_limits<double>::epsilon()}};

// Of what sums of a few hundred terms differ by in units of the epsilon, with a margin: the parity models differ by 4
// at most, experts with few tokens by 8.3, and a planted fault by 20 at least.
constexpr double kEpsilonsThatPass = 12;
constexpr double kLeastTolerance = 2e-4;

}  // namespace

std::string Tolerance::ToText() const {
  char text[64];
  std::snprintf(text, sizeof(text), "at most %.3g (", relative);
  return text + reason + ")";
}

Tolerance ToleranceOf(const std::optional<double>& given, std::optional<c10::ScalarType> type,
                      const CompiledPlan& plan) {
  const auto used = [&](const Epsilon& dtype) {
    if (type.value_or(at::kFloat) == dtype.type) return true;
    const std::optional<Precision>& precision = plan.plan->precision;
    if (precision && (precision->parameters == dtype.name || precision->reduce == dtype.name)) return true;
    if (std::ranges::find(plan.plan->adapters, dtype.name, &Adapter::dtype) != plan.plan->adapters.end()) return true;
    return std::ranges::find(plan.kept_dtypes, dtype.name, &ModuleDType::dtype) != plan.kept_dtypes.end();
  };
  const auto coarsest = std::ranges::find_if(kEpsilons, used);
  const double epsilon = coarsest == kEpsilons.end() ? std::numeric_limits<float>::epsilon() : coarsest->epsilon;
  if (given) return {*given, epsilon, "--tolerance"};
  if (coarsest == kEpsilons.end()) return {kLeastTolerance, epsilon, "the minimum"};
  return {std::max(kLeastTolerance, kEpsilonsThatPass * epsilon), epsilon, coarsest->name};
}

double Tolerance::LeastScale(double largest, int64_t terms) const {
  const double absolute = std::sqrt(static_cast<double>(std::max<int64_t>(terms, 1))) * epsilon * largest;
  return relative > 0 ? absolute / relative : 0;
}

double LargestValue(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.numel() == 0) return 0;
  return tensor.to(c10::kCPU, c10::kDouble).abs().max().item<double>();
}

double RelativeDifference(const at::Tensor& got, const at::Tensor& expected, double least_scale) {
  if (expected.numel() == 0) return 0;
  const at::Tensor e = expected.to(c10::kCPU, c10::kDouble);
  const double difference = (got.to(c10::kCPU, c10::kDouble) - e).abs().max().item<double>();
  const double scale = std::max(e.abs().max().item<double>(), least_scale);
  return scale > 0 ? difference / scale : difference;
}

}  // namespace moonshard
