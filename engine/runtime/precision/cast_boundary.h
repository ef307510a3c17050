// CastBoundary: casts floating-point tensors around a module's calls: `precision` at the model, `keep_dtype` at a module.
// Casts are part of autograd's graph, so a gradient has the dtype of the tensor it belongs to. Parameters are cast where
// they are gathered (fsdp/unit.h).
// Stage before: compile, which decides where. Stage after: the boundary inside it.
#pragma once

#include <memory>
#include <optional>

#include <c10/core/ScalarType.h>

#include "engine/runtime/nn/boundary.h"

namespace moonshard {

struct Casts {
  std::optional<c10::ScalarType> inputs;
  std::optional<c10::ScalarType> outputs;
  bool back = false;  // cast outputs to the dtype of the first floating-point input, in place of `outputs`
};

class CastBoundary final : public Boundary {
 public:
  // `inner` may be null. Its redistributions run on cast inputs, and on outputs before they are cast: bytes on the wire are
  // those of the computation's dtype.
  CastBoundary(Casts casts, std::shared_ptr<Boundary> inner) : casts_(casts), inner_(std::move(inner)) {}
  std::unique_ptr<Call> Enter(std::span<const TensorSlot> arguments) override;
  void Leave(Call& call, std::span<const TensorSlot> results) override;
  CallRunner* runner() override { return inner_ ? inner_->runner() : nullptr; }

 private:
  Casts casts_;
  std::shared_ptr<Boundary> inner_;
};

}  // namespace moonshard
