#include "engine/runtime/intercept/operator_scope.h"

namespace moonshard {
namespace {

// Why this key: it is below the autograd keys, so forward and backward pass it alike and no handler sees autograd's
// wrappers; it has no fallback of its own in LibTorch; and it is above all backends, so it also sees operators on meta.
// Alternatives: the Python and functorch keys have fallbacks of LibTorch's own, a key above autograd does not see the
// backward's operators, PrivateUse1 is a backend, and RecordFunction callbacks cannot replace results or throw.
constexpr c10::DispatchKey kKey = c10::DispatchKey::Fake;

// The innermost scope of this thread. A scope restores what it found.
OperatorScope*& InnermostOfThread() {
  thread_local OperatorScope* scope = nullptr;
  return scope;
}

}  // namespace

// One operator on its way from the innermost handler to the kernel: a chain of responsibility, one link a scope. The
// handlers run with the key excluded, so that operators of their own go straight to the kernel.
class HandlerChain final : public OperatorHandler::Next {
 public:
  HandlerChain(const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack& stack, OperatorScope* scope)
      : op_(op), keys_(keys), stack_(stack), scope_(scope) {}

  void Run() override {
    const c10::impl::ExcludeDispatchKeyGuard not_again(kKey);
    OperatorScope* const scope = scope_;
    if (scope == nullptr) {
      op_.redispatchBoxed(keys_, &stack_);
      return;
    }
    HandlerChain next(op_, keys_, stack_, scope->outer_);
    scope->handler_.Handle(op_, stack_, next);
  }

 private:
  const c10::OperatorHandle& op_;
  c10::DispatchKeySet keys_;
  c10::Stack& stack_;
  OperatorScope* scope_;
};

namespace {

// Whether the operator is defined only by its decomposition into others. It is then decomposed here, so that handlers
// see what runs. Autograd's keys decompose such operators before they come here, but in inference mode, and in calls
// from inside kernels, those keys are excluded. `below`: the keys left for the operator.
bool IsComposite(const c10::OperatorHandle& op, c10::DispatchKeySet below) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
         !op.hasKernelForDispatchKey(below.highestPriorityTypeId()) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd);
}

void Fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack* stack) {
  const c10::DispatchKeySet below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey);
  if (IsComposite(op, below)) {
    op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, *stack);
    return;
  }
  HandlerChain(op, below, *stack, InnermostOfThread()).Run();
}

void RegisterFallback() {
  static const c10::RegistrationHandleRAII registration = c10::Dispatcher::singleton().registerFallback(
      kKey, c10::KernelFunction::makeFromBoxedFunction<&Fallback>(), "moonshard");
}

// The key may be included only once the fallback is registered: without one the dispatcher rejects every operator.
c10::DispatchKey RegisteredKey() {
  RegisterFallback();
  return kKey;
}

}  // namespace

OperatorScope::OperatorScope(OperatorHandler& handler)
    : handler_(handler), outer_(InnermostOfThread()), include_(RegisteredKey()) {
  InnermostOfThread() = this;
}

OperatorScope::~OperatorScope() { InnermostOfThread() = outer_; }

OperatorScope* OperatorScope::Innermost() { return InnermostOfThread(); }

OperatorHandler* OperatorScope::Current() {
  const OperatorScope* const scope = InnermostOfThread();
  return scope == nullptr ? nullptr : &scope->handler_;
}

}  // namespace moonshard
