#include "engine/runtime/fsdp/unit_step.h"

#include <torch/csrc/autograd/graph_task.h>

namespace moonshard {
namespace {

bool InBackward() { return torch::autograd::get_current_graph_task_id() != -1; }

}  // namespace

// A call that an exception ends gives its use up when this is destroyed: the parameters go back to shards on every rank
// that saw the exception, and the next forward of the root puts the others right (RootStep).
class UnitStep::Use final : public State {
 public:
  Use(UnitStep& step, bool counts, std::span<const TensorSlot> arguments) : step_(step), counts_(counts) {
    use_ = step.unit_->Enter(arguments);
    if (counts_) ++step_.calls_;
  }
  ~Use() override {
    if (counts_) --step_.calls_;
    step_.unit_->Abandon(use_);
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  void Leave(std::span<const TensorSlot> results) { step_.unit_->Leave(use_, results); }

 private:
  UnitStep& step_;
  bool counts_;
  std::shared_ptr<Unit::Use> use_;
};

// A call of the root within a call of the root adds nothing: its parameters are full already, by the outer call's use.
// In a backward (a recomputed part calls the root again) it counts by itself.
std::unique_ptr<BoundaryStep::State> UnitStep::Enter(std::span<const TensorSlot> arguments) {
  const bool counts = is_root_ && !InBackward();
  if (counts && calls_ > 0) return nullptr;
  return std::make_unique<Use>(*this, counts, arguments);
}

void UnitStep::Leave(State* state, std::span<const TensorSlot> results) {
  if (state != nullptr) static_cast<Use*>(state)->Leave(results);
}

class RootStep::Forward final : public State {
 public:
  // Either all units are reset or none: an exception may have reached the ranks at different units, of which one rank
  // has full parameters and another has shards, and each must gather in the next forward what the others gather.
  explicit Forward(RootStep& step) : step_(&step) {
    bool failed = step.order_->TakeFailure();
    for (const std::shared_ptr<Unit>& unit : step.units_) failed = failed || unit->in_use();
    if (failed) {
      for (const std::shared_ptr<Unit>& unit : step.units_) unit->Reset();
    }
    step.order_->BeginForward();
  }
  ~Forward() override {
    if (step_ != nullptr) step_->order_->Fail();
    End();
  }
  Forward(const Forward&) = delete;
  Forward& operator=(const Forward&) = delete;
  // What was gathered ahead for units that did not come is freed.
  void End() {
    if (step_ == nullptr) return;
    step_->order_->EndForward();
    for (const std::shared_ptr<Unit>& unit : step_->units_) unit->DropAhead();
    step_ = nullptr;
  }

 private:
  RootStep* step_;
};

// A forward of the model begins here, and units forget what the one before left behind if an exception ended it. Not
// for a nested call of the root, and not in a backward: there a recomputed forward runs inside the use of a unit that
// is open.
std::unique_ptr<BoundaryStep::State> RootStep::Enter(std::span<const TensorSlot> /*arguments*/) {
  if (InBackward() || order_->in_forward()) return nullptr;
  return std::make_unique<Forward>(*this);
}

void RootStep::Leave(State* state, std::span<const TensorSlot> /*results*/) {
  if (state != nullptr) static_cast<Forward*>(state)->End();
}

}  // namespace moonshard
