// CastBoundary: floating-point tensors in another dtype while a module computes: what `precision` does at the model, and
// `keep_dtype` at a module. Casts are part of autograd's graph, so gradients come back in the dtype that came.
// Parameters change their dtype elsewhere (fsdp/unit.h).
// Stage before: compile, which says where. Stage after: the boundary that it is put around.
#pragma once

#include <memory>
#include <optional>

#include <c10/core/ScalarType.h>

#include "engine/runtime/nn/boundary.h"

namespace moonshard {

struct Casts {
  std::optional<c10::ScalarType> inputs;
  std::optional<c10::ScalarType> outputs;
  bool back = false;  // outputs become what the first floating-point input was, in place of `outputs`
};

class CastBoundary final : public Boundary {
 public:
  // `inner` may be null; its moves run on the cast inputs and before the outputs are cast.
  CastBoundary(Casts casts, std::shared_ptr<Boundary> inner) : casts_(casts), inner_(std::move(inner)) {}
  std::unique_ptr<Call> Enter(std::span<const TensorSlot> arguments) override;
  void Leave(Call& call, std::span<const TensorSlot> results) override;
  CallRunner* runner() override { return inner_ ? inner_->runner() : nullptr; }

 private:
  Casts casts_;
  std::shared_ptr<Boundary> inner_;
};

}  // namespace moonshard
