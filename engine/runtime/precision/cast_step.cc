// Integers (ids, positions) and masks pass as they are. The dtype to which results return is that of the first
// floating-point argument, noted before the cast; a call without one returns results in the dtype in which it computed,
// unless `results` is set. The casts are recorded by autograd, so each gradient arrives in the dtype of its tensor.
#include "engine/runtime/precision/cast_step.h"

#include <ATen/core/Tensor.h>

namespace moonshard {
namespace {

class Arrived final : public BoundaryStep::State {
 public:
  explicit Arrived(c10::ScalarType type) : type(type) {}
  c10::ScalarType type;
};

void Cast(const TensorSlot& slot, std::optional<c10::ScalarType> dtype) {
  if (dtype && slot.tensor->defined() && slot.tensor->is_floating_point() && slot.tensor->scalar_type() != *dtype) {
    *slot.tensor = slot.tensor->to(*dtype);
  }
}

}  // namespace

std::unique_ptr<BoundaryStep::State> CastStep::Enter(std::span<const TensorSlot> arguments) {
  std::unique_ptr<State> arrived;
  for (const TensorSlot& slot : arguments) {
    if (!back_ || !slot.tensor->defined() || !slot.tensor->is_floating_point()) continue;
    arrived = std::make_unique<Arrived>(slot.tensor->scalar_type());
    break;
  }
  for (const TensorSlot& slot : arguments) Cast(slot, arguments_);
  return arrived;
}

void CastStep::Leave(State* state, std::span<const TensorSlot> results) {
  const auto* arrived = static_cast<const Arrived*>(state);
  const std::optional<c10::ScalarType> type = arrived == nullptr ? results_ : std::optional(arrived->type);
  for (const TensorSlot& slot : results) Cast(slot, type);
}

}  // namespace moonshard
