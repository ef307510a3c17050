#include "engine/runtime/intercept/operator_scope.h"

namespace moonshard {
namespace {

constexpr c10::DispatchKey kKey = c10::DispatchKey::Fake;

// Of this thread; scopes put back what they found.
OperatorScope*& InnermostOfThread() {
  thread_local OperatorScope* scope = nullptr;
  return scope;
}

}  // namespace

// One operator on its way from the innermost handler to the kernel.
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

// A composite operator without a kernel of its own is taken apart, so that handlers see what runs.
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

// The key may only be switched on when there is something to fall back to.
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
