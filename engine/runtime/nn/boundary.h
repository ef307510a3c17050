// Boundary: what a plan makes of one module's calls: a flat list of steps around the module's own forward. A hookable
// module (hook.h) holds at most one; apply/ makes it from the module's steps (engine/plan/compile/module_steps.h, which
// explains the order).
//
//   enter   [outside steps ...] recompute [inside steps ...]
//           forward
//   leave   [inside steps ...] [outside steps ...]
//
// A call enters the steps in order, runs the forward, and leaves them in the order of the second list. Where the list
// has a runner (recomputation), the steps behind it are the inside: the runner runs them with the forward, now and
// again in the backward. A call that an exception ends leaves no step; the state of each step that was entered is
// destroyed, the last one first, and puts back what the step changed.
//
// The exception that ends a call gets the module's path and the plan's line in its message, once, at the innermost
// boundary that it passes, and goes on as the object that it is: c10::Error (and what derives from it) by its own
// add_context, std::runtime_error and std::logic_error (and what derives from them and keeps their what(), as
// PlanError) by assignment to that base. Others, as std::bad_alloc, pass as they are.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

namespace moonshard {

class ModuleTree;

// One tensor of a call. Arguments are numbered by their position in forward's signature, whether or not an optional
// before them is absent; every tensor inside one argument (a tuple, a vector) has that argument's position. Results
// are numbered by their place in the returned tuple, a single tensor is 0. `tensor` may be undefined.
struct TensorSlot {
  size_t position = 0;
  at::Tensor* tensor = nullptr;
};

// Runs the inside of a call in a way of its own (recomputation).
class CallRunner {
 public:
  // From the tensors that go in to those that come out, always as many. May run later again, on the same or other
  // threads.
  using Inside = std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)>;

  virtual ~CallRunner() = default;
  virtual std::vector<at::Tensor> Run(const Inside& inside, std::vector<at::Tensor> inputs) = 0;
};

// One thing that happens around the calls of a module. Shared by all of its calls, which may run on several threads.
class BoundaryStep {
 public:
  // What one call keeps between Enter and Leave; destroyed when the call ends, by an exception too.
  class State {
   public:
    virtual ~State() = default;
  };

  virtual ~BoundaryStep() = default;
  // May replace the argument tensors by what the module computes on. Null: the call keeps nothing.
  virtual std::unique_ptr<State> Enter(std::span<const TensorSlot> /*arguments*/) { return nullptr; }
  // May replace the result tensors by what leaves the module. `state`: what Enter returned.
  virtual void Leave(State* /*state*/, std::span<const TensorSlot> /*results*/) {}
};

// Sees calls of modules as they run. Tensors may be given another autograd or layout type, not another value. Functions
// that a call's thread runs.
class CallObserver {
 public:
  virtual ~CallObserver() = default;
  // A call begins, before anything of the plan; and it is over, by an exception too. `module`: of the plan's tree.
  virtual void Began(size_t /*module*/) {}
  virtual void Ended(size_t /*module*/) {}
  // The inside of a call begins: arguments as they arrive, in the dtype in which the module computes, before their
  // redistribution. A recomputed call has another inside in the backward. Exited: it is over, by an exception too.
  virtual void Entered(size_t /*module*/, std::span<const TensorSlot> /*arguments*/) {}
  virtual void Exited(size_t /*module*/) {}
  // The results as the module's own forward made them.
  virtual void Made(size_t /*module*/, std::span<const TensorSlot> /*results*/) {}
  // The results as they leave the call.
  virtual void Left(size_t /*module*/, std::span<const TensorSlot> /*results*/) {}
};

// Those of one model, in the order in which they came.
using CallObservers = std::vector<CallObserver*>;

class Boundary {
 public:
  struct Leaving {
    std::shared_ptr<BoundaryStep> step;
    int entered = -1;      // index of the same step in `enter`; -1: it has no state
    bool outside = false;  // of a runner
  };
  struct Steps {
    std::vector<std::shared_ptr<BoundaryStep>> enter;  // in order
    std::vector<Leaving> leave;                        // in order: those of the inside first
    size_t inside = 0;                                 // index into enter of the first step of the inside
    std::shared_ptr<CallRunner> runner;                // of the inside; null: it runs once, directly
  };
  // `module`: of the plan's tree. `where`: "'model.layers.0.mlp' (llama.lua:18)", for messages. `observers`: may be
  // null.
  explicit Boundary(Steps steps, size_t module = 0, std::string where = "",
                    std::shared_ptr<const CallObservers> observers = nullptr)
      : steps_(std::move(steps)), module_(module), where_(std::move(where)), observers_(std::move(observers)) {}

  CallRunner* runner() const { return steps_.runner.get(); }
  // Whether there is no step, only observers.
  bool empty() const { return steps_.enter.empty() && steps_.leave.empty(); }
  // Within a catch block, before the exception is thrown again: adds `where` to its message.
  void Explain() const;

 private:
  friend class BoundaryCall;
  friend class InsideCall;
  const CallObservers* observers() const { return observers_ && !observers_->empty() ? observers_.get() : nullptr; }

  Steps steps_;
  size_t module_;
  std::string where_;
  std::shared_ptr<const CallObservers> observers_;
};

// The inside of one call of a module. On the stack of the call.
class InsideCall {
 public:
  explicit InsideCall(const Boundary& boundary) : boundary_(boundary) {}
  ~InsideCall();
  InsideCall(const InsideCall&) = delete;
  InsideCall& operator=(const InsideCall&) = delete;
  void Enter(std::span<const TensorSlot> arguments);
  void Leave(std::span<const TensorSlot> results);

 private:
  const Boundary& boundary_;
  c10::SmallVector<std::unique_ptr<BoundaryStep::State>, 6> states_;
  bool observed_ = false;
};

// One call: its outside.
class BoundaryCall {
 public:
  explicit BoundaryCall(const Boundary& boundary);
  ~BoundaryCall();
  BoundaryCall(const BoundaryCall&) = delete;
  BoundaryCall& operator=(const BoundaryCall&) = delete;
  void Enter(std::span<const TensorSlot> arguments);
  void Leave(std::span<const TensorSlot> results);

 private:
  const Boundary& boundary_;
  c10::SmallVector<std::unique_ptr<BoundaryStep::State>, 4> states_;
  bool observed_ = false;
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
  const std::shared_ptr<Boundary>& shared_boundary() const { return owned_; }
  // How many calls ran with a boundary. Zero after a step means that the calls go around the hook (hook.h: how that
  // happens).
  int64_t calls() const { return calls_.load(std::memory_order_relaxed); }

  // Makes the module leave a parameter out of its forward; the boundary adds it later. False where the module cannot.
  virtual bool HoldBack(std::string_view /*parameter*/) { return false; }
  // Undoes HoldBack, if the plan could not be applied.
  virtual void ReleaseBack(std::string_view /*parameter*/) {}
  // Sets the rows [first, first + rows) of `total` that the weight of a lookup module holds: ids outside of them give
  // rows of zeros. False if the module does not support it.
  virtual bool SetLocalRows(int64_t /*first*/, int64_t /*rows*/, int64_t /*total*/) { return false; }

  // Sets the shape of `tensor` (a parameter or buffer of the module, by name) that activations around its calls have:
  // the local shape on tp, but the full one if the module gathers its output. For exported programs, whose graphs
  // compute sizes of activations from those of parameters.
  virtual void SetLocalShape(std::string_view /*tensor*/, at::IntArrayRef /*shape*/) {}

  // Called for the root of a model: adds the model's knowledge of its own forward to the tree (ModuleTree::checks).
  virtual void AddKnowledge(ModuleTree& /*tree*/) const {}

  // The class of the module where it is not that of the C++ object (an exported program's); "": it is.
  virtual std::string_view Kind() const { return {}; }

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
