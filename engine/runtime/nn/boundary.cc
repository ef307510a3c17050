#include "engine/runtime/nn/boundary.h"

#include <stdexcept>

#include <c10/util/Exception.h>

namespace moonshard {
namespace {

constexpr std::string_view kInCall = "in the call of ";

bool NamesACall(const char* what) { return std::string_view(what).find(kInCall) != std::string_view::npos; }

}  // namespace

// The message is the mark: what names a call already has passed an inner boundary. That needs no state beside the
// exception, which may be thrown again on another thread (the autograd engine does).
//
// Assigning to the base of an exception that is being handled replaces its message and nothing else of it: type, fields
// and the identity of the object stay, so that hosts catch what they caught before. Only classes that answer what()
// from that base show the new message.
void Boundary::Explain() const {
  if (where_.empty()) return;
  const std::string note = std::string(kInCall) + where_;
  try {
    throw;
  } catch (c10::Error& error) {
    if (!NamesACall(error.what())) error.add_context(note);
  } catch (std::runtime_error& error) {
    if (NamesACall(error.what())) return;
    error.std::runtime_error::operator=(std::runtime_error(error.what() + ("\n" + note)));
  } catch (std::logic_error& error) {
    if (NamesACall(error.what())) return;
    error.std::logic_error::operator=(std::logic_error(error.what() + ("\n" + note)));
  } catch (...) {
  }
}

// States are kept in the order of entering and destroyed in reverse (the destructors below), so that a call that an
// exception ends puts back what its steps changed, the innermost change first. A step that was not entered has no
// state, and is not left.
void InsideCall::Enter(std::span<const TensorSlot> arguments) {
  if (const CallObservers* observers = boundary_.observers(); observers != nullptr) [[unlikely]] {
    observed_ = true;
    for (CallObserver* observer : *observers) observer->Entered(boundary_.module_, arguments);
  }
  const Boundary::Steps& steps = boundary_.steps_;
  for (size_t i = steps.inside; i < steps.enter.size(); ++i) states_.push_back(steps.enter[i]->Enter(arguments));
}

void InsideCall::Leave(std::span<const TensorSlot> results) {
  if (observed_) [[unlikely]] {
    if (const CallObservers* observers = boundary_.observers(); observers != nullptr) {
      for (CallObserver* observer : *observers) observer->Made(boundary_.module_, results);
    }
  }
  for (const Boundary::Leaving& leaving : boundary_.steps_.leave) {
    if (leaving.outside) break;
    BoundaryStep::State* state =
        leaving.entered < 0 ? nullptr : states_[static_cast<size_t>(leaving.entered) - boundary_.steps_.inside].get();
    leaving.step->Leave(state, results);
  }
}

InsideCall::~InsideCall() {
  while (!states_.empty()) states_.pop_back();
  if (!observed_) return;
  if (const CallObservers* observers = boundary_.observers(); observers != nullptr) {
    for (CallObserver* observer : *observers) observer->Exited(boundary_.module_);
  }
}

BoundaryCall::BoundaryCall(const Boundary& boundary) : boundary_(boundary) {
  if (const CallObservers* observers = boundary_.observers(); observers != nullptr) [[unlikely]] {
    observed_ = true;
    for (CallObserver* observer : *observers) observer->Began(boundary_.module_);
  }
}

void BoundaryCall::Enter(std::span<const TensorSlot> arguments) {
  for (size_t i = 0; i < boundary_.steps_.inside; ++i) {
    states_.push_back(boundary_.steps_.enter[i]->Enter(arguments));
  }
}

void BoundaryCall::Leave(std::span<const TensorSlot> results) {
  for (const Boundary::Leaving& leaving : boundary_.steps_.leave) {
    if (!leaving.outside) continue;
    leaving.step->Leave(leaving.entered < 0 ? nullptr : states_[static_cast<size_t>(leaving.entered)].get(), results);
  }
  if (!observed_) return;
  if (const CallObservers* observers = boundary_.observers(); observers != nullptr) {
    for (CallObserver* observer : *observers) observer->Left(boundary_.module_, results);
  }
}

BoundaryCall::~BoundaryCall() {
  while (!states_.empty()) states_.pop_back();
  if (!observed_) return;
  if (const CallObservers* observers = boundary_.observers(); observers != nullptr) {
    for (CallObserver* observer : *observers) observer->Ended(boundary_.module_);
  }
}

}  // namespace moonshard
