#include "engine/train/optim/finite.h"

#include <algorithm>
#include <limits>

#include <ATen/ops/isfinite.h>
#include <c10/core/GradMode.h>

namespace moonshard {
namespace {

constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

// Index of the first parameter whose tensor, or gradient, holds something else than a number, on any rank.
// Parameters are in the same order on every rank, so the smallest index over all ranks is the first parameter that is
// not finite anywhere, with one exchanged number. A rank stops at its first.
int64_t First(const AppliedPlan& model, const World& world, bool gradients) {
  static const CollectiveLabel label("the search for non-finite values");
  int64_t first = kNone;
  for (size_t i = 0; i < model.parameters().size() && first == kNone; ++i) {
    const LiveParameter& parameter = model.parameters()[i];
    const at::Tensor tensor = gradients ? parameter.tensor.grad() : parameter.tensor.detach();
    if (parameter.is_buffer || !tensor.defined()) continue;
    if (!at::isfinite(tensor).all().item<bool>()) first = static_cast<int64_t>(i);
  }
  return std::ranges::min(world.All(first, label));
}

}  // namespace

NonFinite FindNonFinite(const AppliedPlan& model, const World& world) {
  const c10::NoGradGuard no_grad;
  for (const bool gradients : {false, true}) {
    const int64_t first = First(model, world, gradients);
    if (first != kNone) return {model.parameters()[static_cast<size_t>(first)].path, !gradients};
  }
  return {};
}

}  // namespace moonshard
