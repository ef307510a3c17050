#include "engine/runtime/fsdp/unit_order.h"

#include <utility>

#include "engine/runtime/fsdp/unit.h"

namespace moonshard {

// A gather ahead is a collective, so every rank must decide alike. The decision uses only the sequence of calls, which
// is the model's code and the same on every rank, never whether a gather has completed or how much memory is free.
void UnitOrder::BeginForward() {
  now_.clear();
  recording_ = true;
}

// A backward that an exception ended has no end.
bool UnitOrder::TakeFailure() {
  const bool failed = failed_ || in_backward_;
  failed_ = in_backward_ = false;
  if (!failed) return false;
  last_.clear();
  reducing_.reset();
  return true;
}

void UnitOrder::EndForward() {
  recording_ = false;
  last_ = std::move(now_);
  now_.clear();
}

int64_t UnitOrder::Visit(const std::shared_ptr<Unit>& unit) {
  if (!recording_) return -1;
  now_.push_back({unit, false});
  return static_cast<int64_t>(now_.size()) - 1;
}

void UnitOrder::ExpectBackward(int64_t place) {
  std::vector<Visited>& visited = recording_ ? now_ : last_;
  if (place >= 0 && place < static_cast<int64_t>(visited.size())) visited[static_cast<size_t>(place)].backward = true;
}

std::vector<std::shared_ptr<Unit>> UnitOrder::AheadInForward(int64_t place) const {
  std::vector<std::shared_ptr<Unit>> ahead;
  const auto end = static_cast<int64_t>(last_.size());
  if (place < 0 || place >= end) return ahead;
  // Only while this forward follows the last one: at a deviation the recorded order predicts nothing.
  const std::shared_ptr<Unit> now = now_[static_cast<size_t>(place)].unit.lock();
  if (last_[static_cast<size_t>(place)].unit.lock() != now) return ahead;
  for (int64_t next = place + 1; next < end && next <= place + forward_; ++next) {
    if (std::shared_ptr<Unit> unit = last_[static_cast<size_t>(next)].unit.lock()) ahead.push_back(std::move(unit));
  }
  return ahead;
}

std::vector<std::shared_ptr<Unit>> UnitOrder::AheadInBackward(const Unit& unit, int64_t place) const {
  std::vector<std::shared_ptr<Unit>> ahead;
  if (recording_ || place < 0 || place >= static_cast<int64_t>(last_.size())) return ahead;
  if (last_[static_cast<size_t>(place)].unit.lock().get() != &unit) return ahead;
  // Place 0 is the root, whose call encloses all others: its backward opens first, and is followed by the last call's.
  const int64_t from = (place == 0 ? static_cast<int64_t>(last_.size()) : place) - 1;
  for (int64_t next = from; next > 0 && next > from - backward_; --next) {
    const Visited& visited = last_[static_cast<size_t>(next)];
    std::shared_ptr<Unit> other = visited.unit.lock();
    if (visited.backward && other) ahead.push_back(std::move(other));
  }
  return ahead;
}

void UnitOrder::MakeRoomForReduction() {
  if (const std::shared_ptr<Unit> unit = reducing_.lock()) unit->FinishReduction();
  reducing_.reset();
}

}  // namespace moonshard
