// A router's choice is aten::topk of the scores in every reference architecture. It is replaced below autograd, whose
// backward of topk scatters the gradient of the values to the ids that were returned, so gradients follow too.
// A forward that a backward repeats (recompute) chooses from the same scores, to the bit, in another order: it is
// recognised by them.
#include "dsl/commands/run/routing.h"

#include <algorithm>

#include <ATen/ops/gather.h>
#include <ATen/ops/sort.h>
#include <torch/csrc/autograd/graph_task.h>

namespace moonshard {
namespace {

// topk(Tensor self, SymInt k, int dim=-1, bool largest=True, bool sorted=True) -> (Tensor values, Tensor indices)
constexpr size_t kArguments = 5;

bool IsChoice(const c10::OperatorHandle& op) {
  return op.schema().name() == "aten::topk" && op.schema().overload_name().empty();
}

bool InBackward() { return torch::autograd::get_current_graph_task_id() >= 0; }

// By token, whether the two are other experts, in whatever order.
at::Tensor OtherExperts(const at::Tensor& a, const at::Tensor& b, int64_t dim) {
  return std::get<0>(at::sort(a, dim)).ne(std::get<0>(at::sort(b, dim))).any(dim);
}

}  // namespace

void RoutingRecorder::Handle(const c10::OperatorHandle& op, c10::Stack& stack, Next& next) {
  if (!IsChoice(op) || InBackward()) return next.Run();
  const at::Tensor scores = stack[stack.size() - kArguments].toTensor();
  next.Run();
  choices.push_back({last_module_(), scores, stack.back().toTensor()});
}

void RoutingReplay::Handle(const c10::OperatorHandle& op, c10::Stack& stack, Next& next) {
  if (!IsChoice(op)) return next.Run();
  const at::Tensor scores = stack[stack.size() - kArguments].toTensor();
  const int64_t dim = stack[stack.size() - kArguments + 2].toInt();
  next.Run();
  at::Tensor wanted;
  if (InBackward()) {
    const auto same = std::ranges::find_if(replaced_, [&](const RoutingChoice& one) {
      return one.scores.sizes() == scores.sizes() && one.scores.equal(scores);
    });
    if (same == replaced_.end()) return;
    wanted = same->chosen;
  } else {
    if (next_ == choices_.size()) return;
    const RoutingChoice& other = choices_[next_++];
    const at::Tensor own = stack.back().toTensor();
    if (own.sizes() != other.chosen.sizes() || scores.sizes() != other.scores.sizes()) return;
    wanted = other.chosen.to(own.device());
    const at::Tensor differs = OtherExperts(own, wanted, dim);
    const int64_t count = differs.sum().item<int64_t>();
    tokens_ += differs.numel();
    differing_ += count;
    if (count == 0) return;
    if (first_.empty()) first_ = other.after;
    replaced_.push_back({other.after, scores, wanted});
  }
  stack[stack.size() - 2] = at::gather(scores, dim, wanted);
  stack.back() = wanted;
}

}  // namespace moonshard
