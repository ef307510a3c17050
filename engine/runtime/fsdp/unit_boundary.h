// UnitBoundary: a unit around a module's calls, and around what the plan does there besides: parameters are whole before
// the inputs move, and until the outputs have left.
// Stage before: unit.h, and the boundary that it is put around. Stage after: apply.
#pragma once

#include <memory>
#include <vector>

#include "engine/runtime/fsdp/unit.h"
#include "engine/runtime/fsdp/unit_order.h"
#include "engine/runtime/nn/boundary.h"

namespace moonshard {

class UnitBoundary final : public Boundary {
 public:
  // What the root's boundary knows besides: every unit of the model, which forget, when a step begins, what one that an
  // exception ended has left, and their order.
  struct Root {
    std::vector<std::shared_ptr<Unit>> units;
    std::shared_ptr<UnitOrder> order;
  };

  // `inner` may be null; `root`: of the root's unit.
  UnitBoundary(std::shared_ptr<Unit> unit, std::shared_ptr<Boundary> inner, Root root = {});
  std::unique_ptr<Call> Enter(std::span<const TensorSlot> arguments) override;
  void Leave(Call& call, std::span<const TensorSlot> results) override;
  CallRunner* runner() override { return inner_ ? inner_->runner() : nullptr; }

 private:
  std::shared_ptr<Unit> unit_;
  std::shared_ptr<Boundary> inner_;
  Root root_;
};

}  // namespace moonshard
