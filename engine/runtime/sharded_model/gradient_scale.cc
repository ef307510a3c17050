#include "engine/runtime/sharded_model/gradient_scale.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/core/ScalarType.h>

namespace moonshard {
namespace {

constexpr size_t kParameters = 8;
constexpr int64_t kElements = 256;
constexpr size_t kMagnitudes = 8;

// A view: the elements are those of `gradient` at any later time.
at::Tensor SomeElements(const at::Tensor& gradient) {
  const at::Tensor flat = gradient.as_strided({gradient.numel()}, {1});
  return flat.slice(0, 0, flat.numel(), std::max<int64_t>(1, flat.numel() / kElements)).slice(0, 0, kElements);
}

double EpsilonOf(c10::ScalarType type) {
  switch (type) {
    case at::kDouble: return std::ldexp(1.0, -52);
    case at::kHalf: return std::ldexp(1.0, -10);
    case at::kBFloat16: return std::ldexp(1.0, -7);
    default: return std::ldexp(1.0, -23);
  }
}

}  // namespace

GradientScale::GradientScale(const AppliedPlan& model) : model_(model) {
  std::vector<size_t> trained;
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    const LiveParameter& parameter = model.parameters()[i];
    if (!parameter.is_buffer && parameter.tensor.requires_grad()) trained.push_back(i);
  }
  const size_t count = std::min(kParameters, trained.size());
  for (size_t i = 0; i < count; ++i) parameters_.push_back(trained[i * trained.size() / count]);
  kept_.resize(count);
}

void GradientScale::Keep() {
  const c10::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor gradient = model_.parameters()[parameters_[i]].tensor.grad();
    kept_[i] = {};
    if (!gradient.defined() || gradient.numel() == 0 || !gradient.is_floating_point()) continue;
    if (gradient.layout() != at::kStrided || !gradient.is_non_overlapping_and_dense()) continue;
    kept_[i] = {gradient, SomeElements(gradient).clone()};
  }
}

// The factor is that of the element with the largest magnitude; all others must have changed by it, up to what rounding
// at their own size makes. An element that underflows leaves no factor.
std::vector<std::optional<double>> GradientScale::Factors() {
  const c10::NoGradGuard no_grad;
  std::vector<std::optional<double>> factors(parameters_.size());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Kept kept = std::exchange(kept_[i], {});
    if (!kept.gradient.defined()) continue;
    const at::Tensor before = kept.elements.to(at::kCPU, at::kDouble);
    const at::Tensor after = SomeElements(kept.gradient).to(at::kCPU, at::kDouble);
    const auto* b = before.const_data_ptr<double>();
    const auto* a = after.const_data_ptr<double>();
    std::set<double> magnitudes;
    int64_t largest = 0;
    bool finite = true;
    for (int64_t k = 0; k < before.numel(); ++k) {
      finite = finite && std::isfinite(b[k]) && std::isfinite(a[k]);
      if (b[k] != 0) magnitudes.insert(std::abs(b[k]));
      if (std::abs(b[k]) > std::abs(b[largest])) largest = k;
    }
    if (!finite || magnitudes.size() < kMagnitudes || a[largest] == 0) continue;
    const double factor = a[largest] / b[largest];
    const double tolerance = Tolerance(i);
    bool one_factor = true;
    for (int64_t k = 0; k < before.numel(); ++k) {
      one_factor = one_factor && std::abs(a[k] - factor * b[k]) <= tolerance * std::abs(factor * b[k]);
    }
    if (one_factor) factors[i] = factor;
  }
  return factors;
}

double GradientScale::Tolerance(size_t i) const {
  return 16 * EpsilonOf(model_.parameters()[parameters_[i]].tensor.scalar_type());
}

}  // namespace moonshard
