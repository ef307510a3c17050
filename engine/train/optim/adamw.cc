#include "engine/train/optim/adamw.h"

#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include "engine/core/base/check.h"

namespace moonshard {
namespace {

// What one call of the fused operator takes: parameters with equal options, dtype and number of steps.
struct FusedGroup {
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> first_moments;
  std::vector<at::Tensor> second_moments;
};

// Whether both have their elements in one order. The stride of a dim of size 1 says nothing.
bool SameOrder(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) return false;
  for (int64_t dim = 0; dim < a.dim(); ++dim) {
    if (a.size(dim) > 1 && a.stride(dim) != b.stride(dim)) return false;
  }
  return true;
}

// The operator walks the memory of its tensors in one order.
bool Alike(const at::Tensor& parameter, const at::Tensor& other) {
  return at::isFloatingType(parameter.scalar_type()) && !other.is_sparse() && other.device() == parameter.device() &&
         other.scalar_type() == parameter.scalar_type() && SameOrder(parameter, other) &&
         parameter.is_non_overlapping_and_dense();
}

}  // namespace

bool AdamW::CanFuse(bool any_device) const {
  std::optional<c10::Device> device;
  for (const torch::optim::OptimizerParamGroup& group : param_groups()) {
    if (static_cast<const torch::optim::AdamWOptions&>(group.options()).amsgrad()) return false;
    for (const at::Tensor& parameter : group.params()) {
      const at::Tensor& gradient = parameter.grad();
      if (!gradient.defined()) continue;
      if (!device) device = parameter.device();
      if ((!parameter.is_cuda() && !any_device) || parameter.device() != *device || !Alike(parameter, gradient)) {
        return false;
      }
      const auto found = state().find(parameter.unsafeGetTensorImpl());
      if (found == state().end()) continue;
      const auto& state = static_cast<const torch::optim::AdamWParamState&>(*found->second);
      if (!Alike(parameter, state.exp_avg()) || !Alike(parameter, state.exp_avg_sq())) return false;
    }
  }
  return device.has_value();
}

at::Tensor AdamW::step(LossClosure closure) {
  if (!CanFuse()) return torch::optim::AdamW::step(std::move(closure));
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode enabled(true);
    loss = closure();
  }
  FusedStep();
  return loss;
}

void AdamW::FusedStep() { Fused(std::nullopt); }

void AdamW::FusedStepUnless(const at::Tensor& skip) { Fused(skip); }

void AdamW::Settle(bool skipped) {
  Check(!unsettled_.empty(), "no step of AdamW is unsettled");
  if (skipped) {
    for (State* state : unsettled_.front().counted) state->step(state->step() - 1);
  }
  unsettled_.pop_front();
}

// The operator reads the number of the step from a tensor on the device, for the correction of the moments' bias. The
// state keeps it as an integer, as torch::optim::AdamW does, so the tensor is filled anew: no copy from the host. Steps
// that the device may have skipped, and of which the host does not know yet, are subtracted on the device. A parameter
// that had no gradient in such a step did not count it, so these steps are a part of what a group has in common.
void AdamW::Fused(const std::optional<at::Tensor>& skip) {
  const c10::NoGradGuard no_grad;
  Unsettled step;
  if (skip) step.skip = *skip;
  for (const torch::optim::OptimizerParamGroup& group : param_groups()) {
    const auto& options = static_cast<const torch::optim::AdamWOptions&>(group.options());
    std::map<std::tuple<at::ScalarType, int64_t, std::vector<size_t>>, FusedGroup> groups;
    for (const at::Tensor& parameter : group.params()) {
      const at::Tensor& gradient = parameter.grad();
      if (!gradient.defined()) continue;
      std::unique_ptr<torch::optim::OptimizerParamState>& slot = state()[parameter.unsafeGetTensorImpl()];
      if (slot == nullptr) {
        auto made = std::make_unique<torch::optim::AdamWParamState>();
        made->step(0);
        made->exp_avg(at::zeros_like(parameter, at::MemoryFormat::Preserve));
        made->exp_avg_sq(at::zeros_like(parameter, at::MemoryFormat::Preserve));
        slot = std::move(made);
      }
      auto& state = static_cast<torch::optim::AdamWParamState&>(*slot);
      state.step(state.step() + 1);
      std::vector<size_t> unsure;
      for (size_t i = 0; i < unsettled_.size(); ++i) {
        if (unsettled_[i].counted.contains(&state)) unsure.push_back(i);
      }
      step.counted.insert(&state);
      FusedGroup& fused = groups[{parameter.scalar_type(), state.step(), std::move(unsure)}];
      fused.parameters.push_back(parameter);
      fused.gradients.push_back(gradient);
      fused.first_moments.push_back(state.exp_avg());
      fused.second_moments.push_back(state.exp_avg_sq());
    }
    for (auto& [key, fused] : groups) {
      at::Tensor number = at::full({}, static_cast<double>(std::get<1>(key)),
                                   fused.parameters.front().options().dtype(at::kFloat).requires_grad(false));
      for (const size_t i : std::get<2>(key)) number.sub_(unsettled_[i].skip);
      const std::vector<at::Tensor> steps(fused.parameters.size(), number);
      at::_fused_adamw_(fused.parameters, fused.gradients, fused.first_moments, fused.second_moments, {}, steps,
                        options.lr(), std::get<0>(options.betas()), std::get<1>(options.betas()),
                        options.weight_decay(), options.eps(), /*amsgrad=*/false, /*maximize=*/false,
                        /*grad_scale=*/std::nullopt, skip);
    }
  }
  if (skip) unsettled_.push_back(std::move(step));
}

// Weight decay is for matrices and not for vectors (norms, biases). By the shape of the full parameter, so that all
// ranks make the same groups. Frozen parameters are in no group: they have no gradient and no state.
AdamW MakeAdamW(const AppliedPlan& model, const torch::optim::AdamWOptions& options) {
  std::vector<at::Tensor> matrices;
  std::vector<at::Tensor> vectors;
  for (const LiveParameter& parameter : model.parameters()) {
    if (!model.plan().Trains(parameter.ref)) continue;
    (parameter.shape.size() > 1 ? matrices : vectors).push_back(parameter.tensor);
  }
  auto plain = std::make_unique<torch::optim::AdamWOptions>(options);
  plain->weight_decay(0);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::move(matrices), std::make_unique<torch::optim::AdamWOptions>(options));
  groups.emplace_back(std::move(vectors), std::move(plain));
  return AdamW(groups, options);
}

void SetLearningRate(torch::optim::Optimizer& optimizer, double rate) {
  for (torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) group.options().set_lr(rate);
}

}  // namespace moonshard
