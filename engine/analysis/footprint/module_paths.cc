// In a forward the place is the innermost call. In a backward no call is open: the place of a node is that of the call
// during which autograd made it, by the numbers that nodes get in order (NodeMarks). last_ covers what runs between
// nodes: hooks, and the begin of a recomputation before its module's call opens.
#include "engine/analysis/footprint/module_paths.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>

namespace moonshard {
int32_t ModulePaths::IndexOf(const std::string& path) {
  const auto [entry, fresh] = index_.try_emplace(path, static_cast<int32_t>(paths_.size()));
  if (fresh) paths_.push_back(path);
  return entry->second;
}

void ModulePaths::AddParameter(const at::Tensor& parameter, const std::string& module) {
  of_parameter_[parameter.unsafeGetTensorImpl()] = IndexOf(module);
}

void ModulePaths::Enter(int32_t module) {
  inside_.push_back(module);
  Mark();
}

void ModulePaths::Exit() {
  inside_.pop_back();
  Mark();
}

ModulePaths::Inside::Inside(std::shared_ptr<ModulePaths> paths, int32_t module) : paths_(std::move(paths)) {
  paths_->Enter(module);
}

ModulePaths::Inside::~Inside() { paths_->Exit(); }

// Four cases. Inside a call within a backward it is a recomputation. Inside a call otherwise, the forward. In a node of
// the backward, the call that made the node; an AccumulateGrad node is older than every call and belongs to its
// parameter's module. In a backward between nodes, with gradients enabled, the recomputation before its module's call
// began.
StepPlace ModulePaths::Where() {
  using Phase = StepPlace::Phase;
  const bool in_backward = torch::autograd::get_current_graph_task_id() != -1;
  if (!inside_.empty()) return {in_backward ? Phase::kRecompute : Phase::kForward, -1, inside_.back()};
  const auto node = torch::autograd::get_current_node();
  if (node != nullptr) {
    const auto* accumulate = dynamic_cast<const torch::autograd::AccumulateGrad*>(node.get());
    if (accumulate != nullptr) {
      const auto of = of_parameter_.find(accumulate->variable.unsafeGetTensorImpl());
      last_ = of == of_parameter_.end() ? -1 : of->second;
    } else {
      last_ = marks_.PlaceOf(*node).value_or(-1);
    }
  }
  if (!in_backward) return {Phase::kForward, -1, -1};
  return {at::GradMode::is_enabled() ? Phase::kRecompute : Phase::kBackward, -1, last_};
}

}  // namespace moonshard
