#include "engine/fsdp/unit_boundary.h"

#include <utility>

#include <torch/csrc/autograd/graph_task.h>

namespace moonshard {
namespace {

class UnitCall final : public Boundary::Call {
 public:
  UnitCall(std::shared_ptr<Unit> unit, std::shared_ptr<Unit::Use> use) : unit_(std::move(unit)), use_(std::move(use)) {}
  ~UnitCall() override {
    inner.reset();
    unit_->Abandon(use_);
  }
  const std::shared_ptr<Unit::Use>& use() const { return use_; }
  std::unique_ptr<Boundary::Call> inner;

 private:
  std::shared_ptr<Unit> unit_;
  std::shared_ptr<Unit::Use> use_;
};

}  // namespace

UnitBoundary::UnitBoundary(std::shared_ptr<Unit> unit, std::shared_ptr<Boundary> inner,
                           std::vector<std::shared_ptr<Unit>> all)
    : unit_(std::move(unit)), inner_(std::move(inner)), all_(std::move(all)) {}

std::unique_ptr<Boundary::Call> UnitBoundary::Enter(std::span<const TensorSlot> arguments) {
  const bool in_backward = torch::autograd::get_current_graph_task_id() != -1;
  if (!in_backward) {
    for (const std::shared_ptr<Unit>& unit : all_) unit->Reset();
  }
  auto call = std::make_unique<UnitCall>(unit_, unit_->Enter(arguments));
  if (inner_) call->inner = inner_->Enter(arguments);
  return call;
}

void UnitBoundary::Leave(Call& call, std::span<const TensorSlot> results) {
  auto& own = static_cast<UnitCall&>(call);
  if (inner_) inner_->Leave(*own.inner, results);
  unit_->Leave(own.use(), results);
}

}  // namespace moonshard
