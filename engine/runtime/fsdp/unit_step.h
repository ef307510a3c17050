// Steps of units around calls: UnitStep gathers a unit's parameters before the module's other steps read them and
// reshards them after the outputs have left; RootStep begins and ends a forward of the model.
// Stage before: unit.h. Stage after: apply, which puts them first in a boundary.
#pragma once

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "engine/runtime/fsdp/unit.h"
#include "engine/runtime/fsdp/unit_order.h"
#include "engine/runtime/nn/boundary.h"

namespace moonshard {

class UnitStep final : public BoundaryStep {
 public:
  // `is_root`: a call of the root within its own call (apply/call_as_model.h) is part of that: its parameters are full.
  UnitStep(std::shared_ptr<Unit> unit, bool is_root) : unit_(std::move(unit)), is_root_(is_root) {}
  std::unique_ptr<State> Enter(std::span<const TensorSlot> arguments) override;
  void Leave(State* state, std::span<const TensorSlot> results) override;

 private:
  class Use;
  std::shared_ptr<Unit> unit_;
  bool is_root_;
  std::atomic<int> calls_ = 0;  // of the root, in forward
};

// Of the root: every unit of the model forgets what a step that an exception ended has left, and their order is noted.
// Nothing in a backward, and nothing for a call within such a call.
class RootStep final : public BoundaryStep {
 public:
  RootStep(std::vector<std::shared_ptr<Unit>> units, std::shared_ptr<UnitOrder> order)
      : units_(std::move(units)), order_(std::move(order)) {}
  std::unique_ptr<State> Enter(std::span<const TensorSlot> arguments) override;
  void Leave(State* state, std::span<const TensorSlot> results) override;

 private:
  class Forward;
  std::vector<std::shared_ptr<Unit>> units_;
  std::shared_ptr<UnitOrder> order_;
};

}  // namespace moonshard
