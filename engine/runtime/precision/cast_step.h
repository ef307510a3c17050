// CastStep: floating-point tensors in another dtype while a module computes: what `precision` does at the model, and
// `keep_dtype` at a module. Casts are part of autograd's graph, so gradients come back in the dtype that came.
// Parameters change their dtype elsewhere (fsdp/unit.h).
// Stage after: apply, which puts it around redistributions: collectives carry the dtype in which the module computes.
#pragma once

#include <memory>
#include <optional>

#include <c10/core/ScalarType.h>

#include "engine/runtime/nn/boundary.h"

namespace moonshard {

class CastStep final : public BoundaryStep {
 public:
  // Casts arguments to `arguments`, if there is one, and results to `results`, or with `back` to the original dtype of
  // the first floating-point argument.
  CastStep(std::optional<c10::ScalarType> arguments, std::optional<c10::ScalarType> results, bool back = false)
      : arguments_(arguments), results_(results), back_(back) {}
  std::unique_ptr<State> Enter(std::span<const TensorSlot> arguments) override;
  void Leave(State* state, std::span<const TensorSlot> results) override;

 private:
  std::optional<c10::ScalarType> arguments_;
  std::optional<c10::ScalarType> results_;
  bool back_;
};

}  // namespace moonshard
