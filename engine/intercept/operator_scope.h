// OperatorScope: lets a handler see, replace or repeat every operator that this thread runs below autograd, forward and
// backward, with composite operators taken apart. For what must know operators and not only modules: keeping chosen
// results for a recomputation.
//
// A fallback of c10's dispatcher under the key Fake, which autograd stands above, switched on for the thread while a
// scope is open. About 2 us an operator inside a scope, nothing outside. The registration itself is made by the first
// scope and stays: the dispatcher is one for the process.
// Stage before: none. Stage after: recompute.
#pragma once

#include <memory>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace moonshard {

class OperatorHandler {
 public:
  // Runs the operator: of the scope around, or the kernel. Takes the arguments from the stack and leaves the results.
  class Next {
   public:
    virtual ~Next() = default;
    virtual void Run() = 0;
  };

  virtual ~OperatorHandler() = default;
  // The arguments are on top of the stack. Either calls next.Run(), perhaps with changed arguments, or puts results in
  // their place. Operators that a handler itself runs are not handled.
  virtual void Handle(const c10::OperatorHandle& op, c10::Stack& stack, Next& next) = 0;
};

// On one thread; scopes nest, the innermost sees an operator first.
class OperatorScope {
 public:
  explicit OperatorScope(OperatorHandler& handler);
  ~OperatorScope();
  OperatorScope(const OperatorScope&) = delete;
  OperatorScope& operator=(const OperatorScope&) = delete;

  // The innermost scope's; null outside of all.
  static OperatorHandler* Current();

 private:
  friend class HandlerChain;
  OperatorHandler& handler_;
  OperatorScope* outer_;
  c10::impl::IncludeDispatchKeyGuard include_;
};

}  // namespace moonshard
