#include "engine/runtime/fsdp/unit_boundary.h"

#include <utility>

#include <torch/csrc/autograd/graph_task.h>

namespace moonshard {
namespace {

class UnitCall final : public Boundary::Call {
 public:
  UnitCall(std::shared_ptr<Unit> unit, UnitBoundary::Root* root) : unit_(std::move(unit)), root_(root) {
    if (root_ == nullptr) return;
    for (const std::shared_ptr<Unit>& of_root : root_->units) of_root->Reset();
    root_->order->BeginForward();
  }
  ~UnitCall() override {
    inner.reset();
    if (use) unit_->Abandon(use);
    EndRoot();
  }
  // The forward of the root is over: what was gathered ahead for units that did not come is let go.
  void EndRoot() {
    if (root_ == nullptr) return;
    root_->order->EndForward();
    for (const std::shared_ptr<Unit>& of_root : root_->units) of_root->DropAhead();
    root_ = nullptr;
  }
  std::shared_ptr<Unit::Use> use;
  std::unique_ptr<Boundary::Call> inner;

 private:
  std::shared_ptr<Unit> unit_;
  UnitBoundary::Root* root_;
};

}  // namespace

UnitBoundary::UnitBoundary(std::shared_ptr<Unit> unit, std::shared_ptr<Boundary> inner, Root root)
    : unit_(std::move(unit)), inner_(std::move(inner)), root_(std::move(root)) {}

std::unique_ptr<Boundary::Call> UnitBoundary::Enter(std::span<const TensorSlot> arguments) {
  const bool in_backward = torch::autograd::get_current_graph_task_id() != -1;
  // A call of the root within its own call (call_as_model.h) is part of that: its parameters are whole already.
  const bool within = root_.order && !in_backward && root_.order->in_forward();
  auto call = std::make_unique<UnitCall>(unit_, root_.order && !in_backward && !within ? &root_ : nullptr);
  if (!within) call->use = unit_->Enter(arguments);
  if (inner_) call->inner = inner_->Enter(arguments);
  return call;
}

void UnitBoundary::Leave(Call& call, std::span<const TensorSlot> results) {
  auto& own = static_cast<UnitCall&>(call);
  if (inner_) inner_->Leave(*own.inner, results);
  if (own.use) unit_->Leave(own.use, results);
  own.EndRoot();
}

}  // namespace moonshard
