// CastStep: casts the floating-point arguments and results of a module, as `precision` declares for the model and
// `keep_dtype` for a module. Autograd records the casts, so each gradient has the dtype of its tensor. CastStep does
// not change the dtype of parameters (fsdp/unit.h does).
// Stage after: apply, which places the casts outside of the redistributions, so that collectives communicate in the
// dtype in which the module computes.
#pragma once

#include <memory>
#include <optional>

#include <c10/core/ScalarType.h>

#include "engine/runtime/nn/boundary.h"

namespace moonshard {

class CastStep final : public BoundaryStep {
 public:
  // Casts arguments to `arguments` and results to `results`; nullopt: no cast. With `back`, results are cast to the
  // dtype that the first floating-point argument had before it was cast; `results` then applies only if there is no
  // such argument.
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
