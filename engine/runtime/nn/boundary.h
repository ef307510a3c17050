// Boundary: the steps that a plan runs around the calls of one module. One flat list of steps runs before the module's
// own forward, a second list after it. A hookable module (hook.h) has at most one Boundary. apply/ makes it from the
// module's steps (engine/plan/compile/module_steps.h explains their order).
//
//   enter   [outside steps ...] recompute [inside steps ...]
//           forward
//   leave   [inside steps ...] [outside steps ...]
//
// A call runs Enter of the steps in the order of the first list, then the forward, then Leave of the steps in the order
// of the second list. If the boundary has a runner (recomputation), the inside of the call is the forward with the
// inside steps: the runner runs the inside in the call, and again in the backward. If an exception ends the call, Leave
// does not run for the remaining steps. The state of each entered step is destroyed, the last state first, and the
// destructor restores what the step has changed.
//
// When an exception ends a call, the module's path and the plan's line are added to its message, once, at the innermost
// boundary that the exception passes. The exception object stays the same: c10::Error (and classes derived from it)
// gets the text by add_context, std::runtime_error and std::logic_error (and derived classes that inherit their what(),
// such as PlanError) by assignment to that base class. Other exceptions, such as std::bad_alloc, pass unchanged.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

namespace moonshard {

class ModuleTree;

// One tensor of a call. An argument has the number of its position in forward's signature, even if an optional argument
// before it is absent; every tensor inside one argument (a tuple, a vector) has the number of that argument. A result
// has the number of its position in the returned tuple; a single tensor is 0. `tensor` points to a tensor, which may be
// undefined.
struct TensorSlot {
  size_t position = 0;
  at::Tensor* tensor = nullptr;
};

// A low-rank term of a weight: a [rank, in] and b [out, rank], or shards of them; both without elements: no term.
struct LowRank {
  at::Tensor a;
  at::Tensor b;
  double scale = 1;
  double dropout = 0;  // probability that an element of the input is dropped in training
};

// The positions of a sequence to which its tokens attend; causal.
struct AttentionReach {
  double scale = 1;               // of the scores
  std::optional<int64_t> window;  // number of positions to which a token attends, its own included; nullopt: all
  at::Tensor padding;             // bool [B or 1, T], true at tokens, of the full sequence; undefined: all are tokens
  // int64 [B or 1, T], of the full sequence: a token attends to those with its number; undefined: to all
  at::Tensor documents = {};
};

// Attention of this rank's tokens over the tokens of all ranks of a mesh axis. A rank has one chunk of the sequence
// (shard(1)), or an early and a late one (shard(1,zigzag)); engine/layout/shards.h has their sizes.
class AttentionRing {
 public:
  struct Tokens {
    int64_t first = 0;
    int64_t count = 0;
  };

  virtual ~AttentionRing() = default;
  // The tokens of this rank in a sequence of `length` tokens: no, one or two runs, in the order of its tensors.
  virtual std::vector<Tokens> OwnTokens(int64_t length) const = 0;
  // Returns the tokens of this rank along dim `dim` of `full`, which has all tokens and is the same on every rank:
  // rotary tables, positions. A view where possible. The layout checker takes the result for a shard; a slice that is
  // made otherwise it takes for a tensor that every rank has.
  virtual at::Tensor OwnShard(const at::Tensor& full, int64_t dim) const = 0;
  // q [B, n, t, D], k [B, m, t, D] and v [B, m, t, Dv] of this rank's t tokens, rotated for their positions in the full
  // sequence of `length` tokens; m divides n -> [B, n, t, Dv], differentiable. Collective over the ranks of
  // the axis, in the forward and in the backward.
  virtual at::Tensor Attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t length,
                            const AttentionReach& reach) const = 0;
};

// Runs the inside of a call, possibly more than once (recomputation).
class CallRunner {
 public:
  // The inside of a call, as a function of the argument tensors that returns the result tensors. The numbers of tensors
  // are the same in every run. The runner may run it again later, on the same or another thread.
  using Inside = std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)>;

  virtual ~CallRunner() = default;
  virtual std::vector<at::Tensor> Run(const Inside& inside, std::vector<at::Tensor> inputs) = 0;
};

// One step around the calls of a module. All calls of the module share the step object. These calls may run on several
// threads.
class BoundaryStep {
 public:
  // The data that one call keeps between Enter and Leave. It is destroyed when the call ends, also by an exception.
  class State {
   public:
    virtual ~State() = default;
  };

  virtual ~BoundaryStep() = default;
  // May replace the argument tensors. Returns null if the call keeps no data.
  virtual std::unique_ptr<State> Enter(std::span<const TensorSlot> /*arguments*/) { return nullptr; }
  // May replace the result tensors. `state`: the data that Enter returned.
  virtual void Leave(State* /*state*/, std::span<const TensorSlot> /*results*/) {}
};

// Observes calls of modules. An observer may change the autograd state or the layout type of a tensor, but not its
// values. The functions run on the thread of the call.
class CallObserver {
 public:
  virtual ~CallObserver() = default;
  // Whether the observed calls are made to examine the plan. Checks that refuse a call that would train wrong
  // (apply/gradient_guard.h) then let it run, so that the observer finds what is wrong. false for an observer of
  // training as it is.
  virtual bool examines() const { return true; }
  // Began: a call begins; no step has run yet. Ended: the call has ended, possibly by an exception. `module`: index in
  // the plan's tree.
  virtual void Began(size_t /*module*/) {}
  virtual void Ended(size_t /*module*/) {}
  // Entered: the inside of a call begins. The arguments have the dtype in which the module computes, and are not
  // redistributed yet. The inside of a recomputed call begins a second time in the backward. Exited: the inside has
  // ended, possibly by an exception.
  virtual void Entered(size_t /*module*/, std::span<const TensorSlot> /*arguments*/) {}
  virtual void Exited(size_t /*module*/) {}
  // `results`: the results of the module's own forward.
  virtual void Made(size_t /*module*/, std::span<const TensorSlot> /*results*/) {}
  // `results`: the results that the call returns.
  virtual void Left(size_t /*module*/, std::span<const TensorSlot> /*results*/) {}
};

// The observers of one model, in the order in which they were added.
using CallObservers = std::vector<CallObserver*>;

class Boundary {
 public:
  struct Leaving {
    std::shared_ptr<BoundaryStep> step;
    int entered = -1;      // index of the same step in `enter`; -1: the step has no state
    bool outside = false;  // runs outside of the runner
  };
  struct Steps {
    std::vector<std::shared_ptr<BoundaryStep>> enter;  // in order
    std::vector<Leaving> leave;                        // in order: the steps of the inside first
    size_t inside = 0;                                 // index into `enter` of the first step of the inside
    std::shared_ptr<CallRunner> runner;                // runs the inside; null: the inside runs once, directly
  };
  // `module`: index in the plan's tree. `where`: "'model.layers.0.mlp' (llama.lua:18)", for messages. `observers`: may
  // be null.
  explicit Boundary(Steps steps, size_t module = 0, std::string where = "",
                    std::shared_ptr<const CallObservers> observers = nullptr)
      : steps_(std::move(steps)), module_(module), where_(std::move(where)), observers_(std::move(observers)) {}

  CallRunner* runner() const { return steps_.runner.get(); }
  // Whether the boundary has no steps, only observers.
  bool empty() const { return steps_.enter.empty() && steps_.leave.empty(); }
  // Adds `where` to the message of the current exception. Call it in a catch block, before the exception is rethrown.
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

// The inside of one call of a module. An object on the stack of the call.
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

// The outside of one call. An object on the stack of the call.
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

// The interface of a module whose calls can be intercepted, for apply/.
class Hookable {
 public:
  Hookable() = default;
  Hookable(const Hookable&) {}  // the copy of a module has no plan
  // NOLINTNEXTLINE(bugprone-unhandled-self-assignment): nothing is taken
  Hookable& operator=(const Hookable&) { return *this; }
  virtual ~Hookable() = default;

  // nullptr removes the plan. The module shares ownership of the boundary.
  void SetBoundary(std::shared_ptr<Boundary> boundary) {
    owned_ = std::move(boundary);
    boundary_ = owned_.get();
  }
  Boundary* boundary() const { return boundary_; }
  const std::shared_ptr<Boundary>& shared_boundary() const { return owned_; }
  // Number of calls that ran with a boundary. Zero after a step means that the model bypasses the hook (hook.h explains
  // how).
  int64_t calls() const { return calls_.load(std::memory_order_relaxed); }

  // Makes the module leave `parameter` out of its forward; the boundary adds the parameter to the result after the
  // redistributions. Returns false if the module does not support it.
  virtual bool HoldBack(std::string_view /*parameter*/) { return false; }
  // Undoes HoldBack, if the plan could not be applied.
  virtual void ReleaseBack(std::string_view /*parameter*/) {}
  // Declares that the weight of a lookup module holds the rows [first, first + rows) of a table of `total` rows: ids
  // outside of this range return rows of zeros. Returns false if the module does not support it.
  virtual bool SetLocalRows(int64_t /*first*/, int64_t /*rows*/, int64_t /*total*/) { return false; }

  // Makes a module with the parameter "weight" W [out, in] compute with W + scale B A (LowRank), a lookup in a table W
  // [in, out] with W + scale (B A)^T, or with W alone if `term` is null. Returns false if it does not support this.
  virtual bool SetLowRank(std::shared_ptr<const LowRank> /*term*/) { return false; }

  // Makes the module, whose forward computes causal attention, attend with `ring`, or to its own tokens if `ring` is
  // null: its inputs and results are then those of this rank's tokens. Returns false if the module does not support it.
  virtual bool SetRing(std::shared_ptr<const AttentionRing> /*ring*/) { return false; }
  // Whether the module supports SetRing.
  virtual bool SupportsRing() const { return false; }

  // Sets the shape that an exported program uses for `tensor` (a parameter or buffer of the module, by name) where its
  // graph computes sizes of activations from sizes of parameters. This is the local shape on tp, or the full shape if
  // the module gathers its output.
  virtual void SetLocalShape(std::string_view /*tensor*/, at::IntArrayRef /*shape*/) {}

  // Called on the root of a model: adds facts about the model's own forward to `tree` (ModuleTree::checks).
  virtual void AddKnowledge(ModuleTree& /*tree*/) const {}

  // Returns the class of the module if it differs from the class of the C++ object (in an exported program); otherwise
  // "".
  virtual std::string_view Kind() const { return {}; }

  // Whether a call can run through a CallRunner: its arguments can be kept, and its result contains tensors.
  virtual bool CanRunThrough() const { return false; }

  // Returns the name of a parameter whose member is not the tensor registered under that name, as after the assignment
  // `head->weight = embed->weight`; "" if there is no such parameter. Such a parameter is an error, because forward
  // would use the member, and a plan or an optimizer would change the registered tensor.
  virtual std::string_view StaleParameter() const { return {}; }

 protected:
  void CountCall() { calls_.fetch_add(1, std::memory_order_relaxed); }
  Boundary* boundary_ = nullptr;

 private:
  std::atomic<int64_t> calls_ = 0;  // recomputation calls from the threads of the autograd engine
  std::shared_ptr<Boundary> owned_;
};

}  // namespace moonshard
