#include "engine/runtime/apply/planned_boundary.h"

#include <ATen/ops/add.h>
#include <torch/csrc/autograd/graph_task.h>

#include "engine/runtime/redistribute/call_frame.h"
#include "engine/runtime/redistribute/shared_redistributions.h"

namespace moonshard {
namespace {

class PlannedCall final : public Boundary::Call {
 public:
  PlannedCall() = default;
  ~PlannedCall() override {
    if (outermost && streams != nullptr) streams->End();
    if (watcher != nullptr) watcher->Left();
  }
  PlannedCall(const PlannedCall&) = delete;
  PlannedCall& operator=(const PlannedCall&) = delete;

  std::optional<CallFrame> frame;  // open until the outputs have left
  bool outermost = false;
  CallWatcher* watcher = nullptr;
  RandomStreams* streams = nullptr;
  std::optional<RandomStream> before;  // where the call has numbers of its own
};

}  // namespace

PlannedBoundary::PlannedBoundary(BoundarySteps steps)
    : steps_(std::move(steps)), label_("the inputs of '" + steps_.path + "'") {}

std::unique_ptr<Boundary::Call> PlannedBoundary::Enter(std::span<const TensorSlot> arguments) {
  auto call = std::make_unique<PlannedCall>();
  if (*steps_.watcher != nullptr) [[unlikely]] {
    call->watcher = *steps_.watcher;
    call->watcher->Entered(steps_.module, arguments);
  }
  CallFrame* enclosing = CallFrame::Current();
  // A call that is recomputed within a backward was compared when it was made first.
  call->outermost = enclosing == nullptr && torch::autograd::get_current_graph_task_id() == -1;
  if (call->outermost && steps_.values) steps_.values->Check();
  if (call->outermost && steps_.guard) steps_.guard->Check();
  if (call->outermost && steps_.group) {
    steps_.group->StartCheckInputs(steps_.signature.Of(arguments), label_);
  }
  if (call->outermost && steps_.gradient_sum) steps_.gradient_sum->Rearm();
  if (steps_.streams) {
    call->streams = steps_.streams.get();
    if (call->outermost) steps_.streams->Begin();
    if (steps_.inside) {
      call->before = steps_.streams->now();
      steps_.streams->Use(*steps_.inside);
    }
  }
  // An outermost call needs a frame for its own moves too: what they cut is noted there.
  if (steps_.opens_frame || enclosing == nullptr) call->frame.emplace();
  for (const TensorSlot& slot : arguments) {
    if (slot.position >= steps_.inputs.size() || !steps_.inputs[slot.position] || !slot.tensor->defined()) continue;
    const TensorRedistribution& move = *steps_.inputs[slot.position];
    if (enclosing != nullptr) {
      *slot.tensor = enclosing->redistributions().Run(move, *slot.tensor);
    } else {
      *slot.tensor = move(std::move(*slot.tensor));
    }
  }
  if (steps_.route && steps_.route->inputs) KeepLocalExperts(arguments);
  return call;
}

void PlannedBoundary::KeepLocalExperts(std::span<const TensorSlot> slots) const {
  at::Tensor none;
  at::Tensor* ids = &none;
  at::Tensor* weights = &none;
  for (const TensorSlot& slot : slots) {
    if (slot.position == static_cast<size_t>(steps_.route->ids)) ids = slot.tensor;
    if (slot.position == static_cast<size_t>(steps_.route->weights)) weights = slot.tensor;
  }
  if (!ids->defined() || !weights->defined()) {
    Diagnostic d = MakeDiagnostic(Finding::kBadInput, "a call of '" + steps_.path + "' has not what its route names");
    d.path = steps_.path;
    d.declared = "route=" + ToText(*steps_.route);
    d.required = "a tensor of ids and one of weights at these positions, counted from 0";
    throw PlanError({std::move(d)});
  }
  steps_.experts.Keep(*ids, *weights, steps_.path);
}

void PlannedBoundary::Leave(Call& call, std::span<const TensorSlot> results) {
  if (CallWatcher* watcher = static_cast<PlannedCall&>(call).watcher; watcher != nullptr) [[unlikely]] {
    watcher->Made(steps_.module, results);
  }
  if (steps_.streams) {
    const std::optional<RandomStream> before = static_cast<PlannedCall&>(call).before;
    if (steps_.behind || before) steps_.streams->Use(steps_.behind ? *steps_.behind : *before);
  }
  for (const TensorSlot& slot : results) {
    if (!slot.tensor->defined()) continue;
    if (slot.position < steps_.outputs.size() && steps_.outputs[slot.position]) {
      *slot.tensor = (*steps_.outputs[slot.position])(std::move(*slot.tensor));
    }
    if (slot.position == 0) {
      for (const at::Tensor& late : steps_.late) *slot.tensor = at::add(*slot.tensor, late);
    }
    if (slot.position == 0 && *steps_.observer) (*steps_.observer)(steps_.path, *slot.tensor);
    if (static_cast<PlannedCall&>(call).outermost && steps_.gradient_sum) steps_.gradient_sum->Watch(*slot.tensor);
  }
  if (steps_.route && !steps_.route->inputs) KeepLocalExperts(results);
  // A call without a collective must not leave the comparison of its inputs to the next.
  if (static_cast<PlannedCall&>(call).outermost && steps_.group) steps_.group->FinishCheck();
}

}  // namespace moonshard
