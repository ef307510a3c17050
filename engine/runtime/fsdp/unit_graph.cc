#include "engine/runtime/fsdp/unit_graph.h"

#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

namespace moonshard {

namespace autograd = torch::autograd;

UnitNode::UnitNode(std::weak_ptr<Unit> unit, std::shared_ptr<Unit::Use> use)
    : unit_(std::move(unit)), use_(std::move(use)) {}

autograd::variable_list UnitNode::apply(autograd::variable_list&& gradients) {
  RefuseToCapture();
  if (const std::shared_ptr<Unit> unit = unit_.lock()) unit->Collect(*use_, gradients);
  return autograd::variable_list(num_outputs());
}

void UnitNode::RefuseToCapture() const {
  // Empty in a backward() for all leaves; else the requested tensors, which autograd captures.
  const auto* wanted = autograd::get_current_graph_task_exec_info();
  if (wanted == nullptr || wanted->empty()) return;
  for (const autograd::Edge& edge : next_edges()) {
    const auto found = wanted->find(edge.function.get());
    if (found == wanted->end() || found->second.captures_ == nullptr) continue;
    Diagnostic d = MakeDiagnostic(Finding::kUnshardedFunction,
                                  "torch::autograd::grad cannot return the gradient of a parameter that fsdp shards");
    if (const std::shared_ptr<Unit> unit = unit_.lock()) d.path = unit->path();
    d.declared = "a request for the gradient of a shard, for which grad would return an undefined tensor";
    d.required = "loss.backward(), after which .grad holds the gradient of the shard";
    throw PlanError({std::move(d)});
  }
}

// Autograd runs accumulators before all else that is ready.
ShardNode::ShardNode(const at::Tensor& shard)
    : Node(/*sequence_nr=*/UINT64_MAX), accumulate_(std::make_shared<autograd::AccumulateGrad>(shard)) {
  add_input_metadata(shard);
}

autograd::variable_list ShardNode::apply(autograd::variable_list&& gradients) {
  if (!gradients[0].defined()) return {};
  return accumulate_->apply(std::move(gradients));
}

UnitInputNode::UnitInputNode(std::weak_ptr<Unit> unit, std::shared_ptr<Unit::Use> use, autograd::edge_list&& edges)
    : Node(std::move(edges)), unit_(std::move(unit)), use_(std::move(use)) {}

autograd::variable_list UnitInputNode::apply(autograd::variable_list&& gradients) {
  if (const std::shared_ptr<Unit> unit = unit_.lock()) unit->CloseBackward(*use_);
  return std::move(gradients);
}

// A view of each argument, whose backward function is replaced by the node: the values are shared, and the gradients of
// all arguments pass through one place. The identity needs no kernel, and a copy of the argument would keep an
// activation.
void MarkInputs(const std::shared_ptr<Unit>& unit, const std::shared_ptr<Unit::Use>& use,
                std::span<const TensorSlot> arguments) {
  autograd::edge_list edges;
  std::vector<at::Tensor*> marked;
  for (const TensorSlot& slot : arguments) {
    if (!slot.tensor->defined() || !slot.tensor->requires_grad()) continue;
    edges.push_back(autograd::impl::gradient_edge(*slot.tensor));
    marked.push_back(slot.tensor);
  }
  if (marked.empty()) return;
  // One node for all arguments: it runs once all of their gradients are there.
  const std::shared_ptr<UnitInputNode> node(new UnitInputNode(unit, use, std::move(edges)), autograd::deleteNode);
  for (at::Tensor* tensor : marked) {
    {
      const at::NoGradGuard no_grad;
      *tensor = tensor->view_as(*tensor);
    }
    autograd::create_gradient_edge(*tensor, node);
    // An in-place operator on the view would change the input without the input's history knowing; marked so, it
    // raises.
    if (auto* view = autograd::impl::get_view_autograd_meta(*tensor); view != nullptr && view->has_bw_view()) {
      view->set_creation_meta(autograd::CreationMeta::IN_CUSTOM_FUNCTION);
    }
  }
}

}  // namespace moonshard
