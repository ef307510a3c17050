#include "engine/train/optim/finite.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <ATen/ops/isfinite.h>
#include <c10/core/GradMode.h>

namespace moonshard {
namespace {

constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

// Index of the first parameter for which `is_finite` is false, on any rank. Parameters are in the same order on every
// rank, so the smallest index over all ranks is the first parameter that is not finite anywhere, with one exchanged
// number. A rank stops at its first.
template <class IsFinite>
int64_t First(const AppliedPlan& model, const World& world, const IsFinite& is_finite) {
  static const CollectiveLabel label("the search for non-finite values");
  int64_t first = kNone;
  for (size_t i = 0; i < model.parameters().size() && first == kNone; ++i) {
    if (!model.parameters()[i].is_buffer && !is_finite(i)) first = static_cast<int64_t>(i);
  }
  return std::ranges::min(world.All(first, label));
}

bool AllFinite(const at::Tensor& tensor) { return !tensor.defined() || at::isfinite(tensor).all().item<bool>(); }

// First the parameters, then, by `is_finite`, their gradients.
template <class IsFinite>
NonFinite Find(const AppliedPlan& model, const World& world, const IsFinite& is_finite) {
  const c10::NoGradGuard no_grad;
  const std::vector<LiveParameter>& parameters = model.parameters();
  int64_t first = First(model, world, [&](size_t i) { return AllFinite(parameters[i].tensor.detach()); });
  if (first != kNone) return {parameters[static_cast<size_t>(first)].path, /*in_parameter=*/true};
  first = First(model, world, is_finite);
  if (first != kNone) return {parameters[static_cast<size_t>(first)].path, /*in_parameter=*/false};
  return {};
}

}  // namespace

NonFinite FindNonFinite(const AppliedPlan& model, const World& world) {
  return Find(model, world, [&](size_t i) { return AllFinite(model.parameters()[i].tensor.grad()); });
}

NonFinite FindNonFinite(const AppliedPlan& model, const World& world, const at::Tensor& norms) {
  const auto* values = norms.const_data_ptr<double>();
  return Find(model, world, [&](size_t i) { return std::isfinite(values[i]); });
}

}  // namespace moonshard
