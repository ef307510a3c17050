// OperatorScope: lets a handler see, replace or repeat every operator that this thread runs below autograd, forward and
// backward, with composite operators taken apart. For what must know operators and not only modules: keeping chosen
// results for a recomputation, proving layouts.
//
// A fallback of c10's dispatcher under the key Fake, which autograd stands above, switched on for the thread while a
// scope is open. About 2 us an operator inside a scope, nothing outside. The registration itself is made by the first
// scope and stays: the dispatcher is one for the process.
// Stage before: none. Stage after: recompute, types.
#pragma once

#include <memory>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "engine/layout/layout.h"

namespace moonshard {

struct RegionInfo;

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

  // What regions say (region.h); operators inside are handled as any other.
  virtual void EnterRegion(const RegionInfo& /*region*/) {}
  virtual void LeaveRegion() {}
  virtual void RegionTakes(const RegionInfo& /*region*/, const at::Tensor& /*tensor*/, const Layout& /*layout*/) {}
  virtual void RegionMakes(const RegionInfo& /*region*/, const at::Tensor& /*tensor*/, const Layout& /*layout*/,
                           bool /*summed*/) {}
  virtual void RegionTakesGradient(const RegionInfo& /*region*/, const at::Tensor& /*parameter*/,
                                   const at::Tensor& /*gradient*/) {}
  virtual void RegionBringsGradient(const RegionInfo& /*region*/, const at::Tensor& /*parameter*/,
                                    const at::Tensor& /*sum*/, const Layout& /*layout*/) {}
  virtual void RegionSums(const RegionInfo& /*region*/, const at::Tensor& /*terms*/, const at::Tensor& /*sum*/) {}
  virtual void OwnRows(const at::Tensor& /*ids*/, const at::Tensor& /*table*/) {}
  virtual void OwnRows(const at::Tensor& /*ids*/, MeshAxis /*axis*/) {}
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
  // Of this thread; null outside of all.
  static OperatorScope* Innermost();
  OperatorScope* outer() const { return outer_; }
  OperatorHandler& handler() const { return handler_; }

 private:
  friend class HandlerChain;
  OperatorHandler& handler_;
  OperatorScope* outer_;
  c10::impl::IncludeDispatchKeyGuard include_;
};

}  // namespace moonshard
