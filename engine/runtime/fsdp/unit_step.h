// Unit steps: UnitStep gathers a unit's parameters before the module's other steps read them, and reshards them after
// the other steps of the call. RootStep begins and ends a forward of the model.
// Stage before: unit.h. Stage after: apply, which places these steps first in a boundary.
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
  // `is_root`: the unit of the root. A call of the root within a call of the root (sharded_model/call_as_model.h) then
  // does nothing, because the parameters are full already.
  UnitStep(std::shared_ptr<Unit> unit, bool is_root) : unit_(std::move(unit)), is_root_(is_root) {}
  std::unique_ptr<State> Enter(std::span<const TensorSlot> arguments) override;
  void Leave(State* state, std::span<const TensorSlot> results) override;

 private:
  class Use;
  std::shared_ptr<Unit> unit_;
  bool is_root_;
  std::atomic<int> calls_ = 0;  // running calls of the root, outside of backwards
};

// The step of the root. At the start of a forward it resets every unit of the model if an exception ended the previous
// step, and starts to record the order of the units. It does nothing in a backward and in a nested call of the root.
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
