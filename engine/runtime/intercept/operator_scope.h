// OperatorScope: passes every operator that this thread runs below autograd, in forward and backward, to a handler,
// which can observe, replace or repeat the operator. Composite operators are decomposed first. Selective recomputation,
// the layout checker and the footprint use it, because interception of module calls is not enough for them.
//
// The interception is a boxed fallback of c10's dispatcher for the key Fake, which is below autograd's keys. The thread
// includes the key while a scope is open. Costs about 2 us per operator inside a scope, nothing outside. The first
// scope registers the fallback, which stays registered for the process.
// Stage after: recompute, types, footprint.
#pragma once

#include <array>
#include <memory>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "engine/layout/layout.h"

namespace moonshard {

struct RegionInfo;

class OperatorHandler {
 public:
  // The rest of the chain: the handlers of outer scopes, then the kernel. Run takes the arguments from the stack and
  // leaves the results there.
  class Next {
   public:
    virtual ~Next() = default;
    virtual void Run() = 0;
  };

  virtual ~OperatorHandler() = default;
  // The arguments are on top of the stack. The handler either calls next.Run(), with the arguments changed or not, or
  // replaces the arguments by results. Operators that the handler itself runs are not intercepted.
  virtual void Handle(const c10::OperatorHandle& op, c10::Stack& stack, Next& next) = 0;

  // The declarations of regions (region.h). Operators inside a region are intercepted like any other.
  virtual void EnterRegion(const RegionInfo& /*region*/) {}
  virtual void LeaveRegion() {}
  virtual void RegionInput(const RegionInfo& /*region*/, const at::Tensor& /*tensor*/, const Layout& /*layout*/) {}
  virtual void RegionOutput(const RegionInfo& /*region*/, const at::Tensor& /*tensor*/, const Layout& /*layout*/,
                            bool /*summed*/) {}
  virtual void RegionMean(const RegionInfo& /*region*/, const at::Tensor& /*tensor*/) {}
  virtual void RegionMoved(const RegionInfo& /*region*/, const at::Tensor& /*tensor*/) {}
  virtual void RegionGradientInput(const RegionInfo& /*region*/, const at::Tensor& /*parameter*/,
                                   const at::Tensor& /*gradient*/) {}
  virtual void RegionGradientOutput(const RegionInfo& /*region*/, const at::Tensor& /*parameter*/,
                                    const at::Tensor& /*sum*/, const Layout& /*layout*/) {}
  virtual void RegionSlice(const RegionInfo& /*region*/, const at::Tensor& /*full*/, at::TensorList /*parts*/,
                           const at::Tensor& /*shard*/, const Layout& /*layout*/) {}
  virtual void RegionAttention(const RegionInfo& /*region*/, const std::array<at::Tensor, 3>& /*heads*/,
                               const at::Tensor& /*gradient*/) {}
  virtual void RegionGradientOf(const RegionInfo& /*region*/, const at::Tensor& /*gradient*/, const at::Tensor& /*of*/,
                                const at::Tensor& /*result*/) {}
  virtual void RegionSum(const RegionInfo& /*region*/, const at::Tensor& /*terms*/, const at::Tensor& /*sum*/) {}
  virtual void OwnRows(const at::Tensor& /*ids*/, const at::Tensor& /*table*/) {}
  virtual void OwnRows(const at::Tensor& /*ids*/, MeshAxis /*axis*/) {}
  virtual void Predicate(const at::Tensor& /*predicate*/) {}
};

// Belongs to one thread. Scopes nest; the innermost scope receives an operator first.
class OperatorScope {
 public:
  explicit OperatorScope(OperatorHandler& handler);
  ~OperatorScope();
  OperatorScope(const OperatorScope&) = delete;
  OperatorScope& operator=(const OperatorScope&) = delete;

  // The handler of the innermost scope of this thread; null without a scope.
  static OperatorHandler* Current();
  // The innermost scope of this thread; null without one.
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
