// UnitBoundary: a unit around a module's calls, and around what the plan does there besides: parameters are whole before
// the inputs move, and until the outputs have left.
// Stage before: unit.h, and the boundary that it is put around. Stage after: apply.
#pragma once

#include <memory>
#include <vector>

#include "engine/fsdp/unit.h"
#include "engine/nn/boundary.h"

namespace moonshard {

class UnitBoundary final : public Boundary {
 public:
  // `inner` may be null. `all`: every unit of the model where this is the root's, which forgets, when a step begins, what
  // one that an exception ended has left; else empty.
  UnitBoundary(std::shared_ptr<Unit> unit, std::shared_ptr<Boundary> inner, std::vector<std::shared_ptr<Unit>> all);
  std::unique_ptr<Call> Enter(std::span<const TensorSlot> arguments) override;
  void Leave(Call& call, std::span<const TensorSlot> results) override;
  CallRunner* runner() override { return inner_ ? inner_->runner() : nullptr; }

 private:
  std::shared_ptr<Unit> unit_;
  std::shared_ptr<Boundary> inner_;
  std::vector<std::shared_ptr<Unit>> all_;
};

}  // namespace moonshard
