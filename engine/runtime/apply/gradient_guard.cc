#include "engine/runtime/apply/gradient_guard.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include <c10/core/GradMode.h>

#include "engine/core/base/check.h"
#include "engine/plan/compile/checks.h"

namespace moonshard {
namespace {

// Outside of a recomputation: the first run of the inside is without gradients and would pass, and the error would come
// out of the backward. The arguments tell as much here as behind the other steps, since redistributions and casts keep
// whether a tensor requires a gradient.
class GradientGuardStep final : public BoundaryStep {
 public:
  // `weight`: undefined if the unreduced gradient is that of the first argument.
  GradientGuardStep(Diagnostic error, at::Tensor weight, std::shared_ptr<const CallObservers> observers,
                    std::shared_ptr<const bool> trains)
      : error_(std::move(error)),
        weight_(std::move(weight)),
        observers_(std::move(observers)),
        trains_(std::move(trains)) {}

  std::unique_ptr<State> Enter(std::span<const TensorSlot> arguments) override {
    if (!c10::GradMode::is_enabled() || !*trains_ || !WouldTrain(arguments)) return nullptr;
    if (std::ranges::any_of(*observers_, [](const CallObserver* observer) { return observer->examines(); })) {
      return nullptr;
    }
    throw PlanError({error_});
  }

 private:
  bool WouldTrain(std::span<const TensorSlot> arguments) const {
    if (weight_.defined()) return weight_.requires_grad();
    return std::ranges::any_of(arguments, [](const TensorSlot& slot) {
      return slot.position == 0 && slot.tensor->defined() && slot.tensor->requires_grad();
    });
  }

  Diagnostic error_;
  at::Tensor weight_;
  std::shared_ptr<const CallObservers> observers_;
  std::shared_ptr<const bool> trains_;
};

at::Tensor WeightOfModule(const CompiledPlan& plan, size_t module, const LiveTree& live) {
  const ModuleTree::Signature& signature = plan.tree->parameters(plan.tree->modules()[module]);
  const auto weight = std::ranges::find(signature, "weight", &Parameter::name);
  Check(weight != signature.end(), "an unreduced gradient of a weight that does not exist");
  return live.tensors[module][static_cast<size_t>(weight - signature.begin())];
}

}  // namespace

std::shared_ptr<BoundaryStep> MakeGradientGuard(const CompiledPlan& plan, size_t module, const LiveTree& live,
                                                std::shared_ptr<const CallObservers> observers,
                                                std::shared_ptr<const bool> trains) {
  std::optional<UnreducedGradient> unreduced = FindUnreducedGradient(plan, module);
  if (!unreduced) return nullptr;
  unreduced->error.help +=
      "; a module that reduces the gradient itself is allowed by ApplyOptions::unreduced_gradients";
  return std::make_shared<GradientGuardStep>(std::move(unreduced->error),
                                             unreduced->of_weight ? WeightOfModule(plan, module, live) : at::Tensor(),
                                             std::move(observers), std::move(trains));
}

}  // namespace moonshard
