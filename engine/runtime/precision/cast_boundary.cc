#include "engine/runtime/precision/cast_boundary.h"

#include <utility>

#include <ATen/core/Tensor.h>

namespace moonshard {
namespace {

class CastCall final : public Boundary::Call {
 public:
  std::optional<c10::ScalarType> outputs;
  std::unique_ptr<Boundary::Call> inner;
};

void Cast(const TensorSlot& slot, std::optional<c10::ScalarType> dtype) {
  if (dtype && slot.tensor->defined() && slot.tensor->is_floating_point() && slot.tensor->scalar_type() != *dtype) {
    *slot.tensor = slot.tensor->to(*dtype);
  }
}

}  // namespace

std::unique_ptr<Boundary::Call> CastBoundary::Enter(std::span<const TensorSlot> arguments) {
  auto call = std::make_unique<CastCall>();
  call->outputs = casts_.outputs;
  if (casts_.back) {
    for (const TensorSlot& slot : arguments) {
      if (!slot.tensor->defined() || !slot.tensor->is_floating_point()) continue;
      call->outputs = slot.tensor->scalar_type();
      break;
    }
  }
  for (const TensorSlot& slot : arguments) Cast(slot, casts_.inputs);
  if (inner_) call->inner = inner_->Enter(arguments);
  return call;
}

void CastBoundary::Leave(Call& call, std::span<const TensorSlot> results) {
  auto& own = static_cast<CastCall&>(call);
  if (inner_) inner_->Leave(*own.inner, results);
  for (const TensorSlot& slot : results) Cast(slot, own.outputs);
}

}  // namespace moonshard
