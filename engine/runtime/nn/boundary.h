// Boundary: what a plan makes of one module's calls. A hookable module (hook.h) holds at most one; apply/ makes it.
// A call runs Enter (the inputs' moves), the module's own forward, Leave (the outputs' moves).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace moonshard {

// One tensor of a call. Arguments are numbered by their position in forward's signature, whether or not an optional
// before them is absent; every tensor inside one argument (a tuple, a vector) has that argument's position. Results
// are numbered by their place in the returned tuple, a single tensor is 0. `tensor` may be undefined.
struct TensorSlot {
  size_t position = 0;
  at::Tensor* tensor = nullptr;
};

// Runs the inside of a call in a way of its own: what a boundary puts between its Enter and Leave (recomputation).
class CallRunner {
 public:
  // From the tensors that go in to those that come out, always as many. May run later again, on the same or other threads.
  using Inside = std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)>;

  virtual ~CallRunner() = default;
  virtual std::vector<at::Tensor> Run(const Inside& inside, std::vector<at::Tensor> inputs) = 0;
  // What belongs to the inside: entered and left in each of its runs. May be null.
  virtual class Boundary* inner() = 0;
};

class Boundary {
 public:
  // State of one call; destroyed when the call ends, by an exception too.
  class Call {
   public:
    virtual ~Call() = default;
  };

  virtual ~Boundary() = default;
  // Replaces the argument tensors by what the module computes on.
  virtual std::unique_ptr<Call> Enter(std::span<const TensorSlot> arguments) = 0;
  // Replaces the result tensors by what leaves the module.
  virtual void Leave(Call& call, std::span<const TensorSlot> results) = 0;
  // Through which the inside of a call runs; null: directly. Asked for after Enter.
  virtual CallRunner* runner() { return nullptr; }
};

// The face that apply/ sees of a module whose calls can be intercepted.
class Hookable {
 public:
  Hookable() = default;
  Hookable(const Hookable&) {}  // a copied module has no plan
  // NOLINTNEXTLINE(bugprone-unhandled-self-assignment): nothing is taken
  Hookable& operator=(const Hookable&) { return *this; }
  virtual ~Hookable() = default;

  // nullptr takes the plan away. The module shares ownership.
  void SetBoundary(std::shared_ptr<Boundary> boundary) {
    owned_ = std::move(boundary);
    boundary_ = owned_.get();
  }
  Boundary* boundary() const { return boundary_; }
  // How many calls ran with a boundary. Zero after a step means that the calls go around the hook (hook.h says how).
  int64_t calls() const { return calls_.load(std::memory_order_relaxed); }

  // Asks the module to leave a parameter out of its forward; the boundary adds it later. False where the module cannot.
  virtual bool HoldBack(std::string_view /*parameter*/) { return false; }
  // Takes a HoldBack back, where a plan could not be applied after all.
  virtual void ReleaseBack(std::string_view /*parameter*/) {}
  // Tells a lookup module that its weight holds only rows [first, first + rows) of `total`: ids outside count as zero
  // rows. False where the module cannot.
  virtual bool SetLocalRows(int64_t /*first*/, int64_t /*rows*/, int64_t /*total*/) { return false; }

  // Whether a call can run through a CallRunner: its arguments can be kept, and its result holds tensors.
  virtual bool CanRunThrough() const { return false; }

  // The name of a parameter whose member is not the tensor that is registered under its name (after `head->weight =
  // embed->weight`): forward would use one and a plan or an optimizer change the other. "" where there is none.
  virtual std::string_view StaleParameter() const { return {}; }

 protected:
  void CountCall() { calls_.fetch_add(1, std::memory_order_relaxed); }
  Boundary* boundary_ = nullptr;

 private:
  std::atomic<int64_t> calls_ = 0;  // recomputation calls from the threads of the autograd engine
  std::shared_ptr<Boundary> owned_;
};

}  // namespace moonshard
