#include "engine/runtime/recompute/kept_results.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include "engine/core/base/result.h"

namespace moonshard {
namespace {

// How the two runs correspond. Chosen operators are matched by their order alone, and checked by name: both runs
// execute the same program with the same arguments, and a program that branches on random or global state is refused at
// the first difference. Counting (every second matmul) depends on the order in the same way.
//
// Why below autograd: the second run passes the operator through autograd first, which records its backward node with
// inputs and outputs; then the kernel is replaced by the recorded result. A handler above autograd would return a
// tensor without history.
constexpr std::array<std::string_view, 12> kAttention = {
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_cudnn_attention",
    "aten::_scaled_dot_product_fused_attention_overrideable",
    "aten::_flash_attention_forward",
    "aten::_efficient_attention_forward",
    "aten::_cudnn_attention_forward",
    "aten::_softmax",
    "aten::_safe_softmax",
    "aten::bmm",
    "aten::baddbmm",
};
constexpr std::array<std::string_view, 4> kMatmuls = {"aten::mm", "aten::addmm", "aten::_scaled_mm",
                                                      "aten::_grouped_mm"};

// Whether the operator returns new values: neither views of its arguments nor arguments that it writes to. Only those
// can be kept: a view costs nothing, and an in-place operator has an effect that a replay would skip.
bool MakesValues(const c10::FunctionSchema& schema) {
  const auto aliases = [](const c10::Argument& argument) { return argument.alias_info() != nullptr; };
  return !schema.returns().empty() && std::ranges::none_of(schema.returns(), aliases) &&
         std::ranges::none_of(schema.arguments(), [](const c10::Argument& argument) {
           return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
         });
}

template <class Visit>
void VisitTensors(const std::vector<c10::IValue>& values, const Visit& visit) {
  for (const c10::IValue& value : values) {
    if (value.isTensor() && value.toTensor().defined()) visit(value.toTensor());
    if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) visit(tensor);
    }
  }
}

[[noreturn]] void NotSupported(const std::string& declared, const std::string& required) {
  Diagnostic d =
      MakeDiagnostic(Finding::kNotSupported, "recomputation cannot use the results that it kept from the first run");
  d.declared = declared;
  d.required = required;
  throw PlanError({std::move(d)});
}

// Fused attention returns what its backward needs (logsumexp) only on request. The first run is under no_grad and does
// not request it; without this the replayed result would lack it.
void AskForBackward(const c10::OperatorHandle& op, c10::Stack& stack) {
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& name = arguments[i].name();
    if (name == "compute_log_sumexp" || name == "compute_logsumexp") stack[stack.size() - arguments.size() + i] = true;
  }
}

}  // namespace

void KeptResults::AddVersion(const at::Tensor& tensor, std::vector<Version>& versions) {
  const c10::VariableVersion& counter = tensor.unsafeGetTensorImpl()->version_counter();
  if (counter.enabled()) versions.push_back({counter, counter.current_version()});
}

// The same decision in both runs: it depends on the operator's name, on how many products came before, and on the open
// modules, never on sizes or memory. Every product is counted, also one that is kept for another reason, so that
// "every second" means the same whatever else the policy keeps.
bool KeptResults::Run::Chosen(const c10::OperatorHandle& op) {
  if (off_ > 0 || regions_ > 0) return false;
  const std::string& name = op.schema().name();
  if (std::ranges::find(kMatmuls, name) != kMatmuls.end()) {
    const bool odd = matmuls_++ % 2 == 0;
    if (kept_.policy_.matmuls == Recomputed::Matmuls::kAll) return true;
    if (kept_.policy_.matmuls == Recomputed::Matmuls::kEverySecond && odd) return true;
  }
  if (kept_.policy_.attention && std::ranges::find(kAttention, name) != kAttention.end()) return true;
  return depth_ > 0 && MakesValues(op.schema());
}

// A view has the version counter of its base only where the schema declares the alias. aten::_unsafe_view declares
// none: at::matmul of more than two dims ends with it, and autograd gives its result a counter of its own. A write
// through such a tensor changes the kept memory, so its counter is checked too. A view of it shares that counter.
void KeptResults::Recorder::NoteUndeclaredViews(const c10::FunctionSchema& schema, const c10::Stack& stack) {
  if (kept_of_storage_.empty()) return;
  const size_t first = stack.size() - schema.returns().size();
  for (size_t i = 0; i < schema.returns().size(); ++i) {
    if (schema.returns()[i].alias_info() != nullptr) continue;
    VisitTensors({stack[first + i]}, [&](const at::Tensor& tensor) {
      if (!tensor.has_storage()) return;
      const auto found = kept_of_storage_.find(tensor.storage().unsafeGetStorageImpl());
      if (found != kept_of_storage_.end()) AddVersion(tensor, kept_.kept_[found->second].versions);
    });
  }
}

void KeptResults::Recorder::Handle(const c10::OperatorHandle& op, c10::Stack& stack, Next& next) {
  if (!Chosen(op)) {
    next.Run();
    return NoteUndeclaredViews(op.schema(), stack);
  }
  AskForBackward(op, stack);
  std::vector<at::Tensor> arguments;
  VisitTensors({stack.end() - static_cast<int64_t>(op.schema().arguments().size()), stack.end()},
               [&](const at::Tensor& tensor) { arguments.push_back(tensor); });
  next.Run();
  NoteUndeclaredViews(op.schema(), stack);
  Kept kept;
  kept.op = op.schema().name();
  kept.results.assign(stack.end() - static_cast<int64_t>(op.schema().returns().size()), stack.end());
  VisitTensors(kept.results, [&](const at::Tensor& tensor) {
    AddVersion(tensor, kept.versions);
    if (tensor.has_storage()) {
      kept_of_storage_.try_emplace(tensor.storage().unsafeGetStorageImpl(), kept_.kept_.size());
    }
  });
  // A replayed operator draws nothing: the generators are set to where the first run left them, so that the operators
  // behind it draw the same numbers.
  if (op.hasTag(at::Tag::nondeterministic_seeded)) kept.after = RunState::Now(arguments);
  kept_.kept_.push_back(std::move(kept));
}

void KeptResults::Replayer::Handle(const c10::OperatorHandle& op, c10::Stack& stack, Next& next) {
  if (!Chosen(op)) return next.Run();
  const bool more = next_ < kept_.kept_.size();
  if (!more || kept_.kept_[next_].op != op.schema().name()) {
    NotSupported("the second run calls " + op.schema().name() + ", the first run called " +
                     (more ? kept_.kept_[next_].op : "no further operator"),
                 "the same operators in both runs of a recomputed module");
  }
  const Kept& kept = kept_.kept_[next_++];
  const auto changed = [](const Version& version) { return version.counter.current_version() != version.value; };
  if (std::ranges::any_of(kept.versions, changed)) {
    NotSupported("the result of " + kept.op + " was changed in place", "no in-place change of a kept result");
  }
  if (kept.after) kept.after->Restore();
  torch::jit::drop(stack, op.schema().arguments().size());
  for (const c10::IValue& value : kept.results) {
    // A new tensor over the same memory: autograd attaches history to it, and with retain_graph it does so twice.
    if (value.isTensor() && value.toTensor().defined()) {
      stack.emplace_back(value.toTensor().variable_data());
    } else {
      stack.push_back(value);
    }
  }
}

namespace {

class KeptCall final : public BoundaryStep::State {
  KeepAllScope scope_;
};

}  // namespace

int* KeptResults::DepthOfCurrent() {
  Run* const run = dynamic_cast<Run*>(OperatorScope::Current());
  return run == nullptr ? nullptr : &run->depth_;
}

// Runs nest where a part of a recomputed part is recomputed, and an operator passes through all of them.
void KeptResults::AddToOff(int change) {
  for (OperatorScope* scope = OperatorScope::Innermost(); scope != nullptr; scope = scope->outer()) {
    if (auto* run = dynamic_cast<Run*>(&scope->handler())) run->off_ += change;
  }
}

KeepNoneScope::KeepNoneScope() { KeptResults::AddToOff(1); }
KeepNoneScope::~KeepNoneScope() { KeptResults::AddToOff(-1); }

KeepAllScope::KeepAllScope() : depth_(nullptr) {
  depth_ = KeptResults::DepthOfCurrent();
  if (depth_ != nullptr) ++*depth_;
}

KeepAllScope::~KeepAllScope() {
  if (depth_ != nullptr) --*depth_;
}

std::unique_ptr<BoundaryStep::State> KeepResultsStep::Enter(std::span<const TensorSlot> /*arguments*/) {
  return std::make_unique<KeptCall>();
}

}  // namespace moonshard
