#include "engine/runtime/recompute/recompute.h"

#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include "engine/core/base/result.h"
#include "engine/runtime/recompute/run_state.h"

namespace moonshard {

namespace autograd = torch::autograd;

namespace {

// Why the reentrant form, a backward within the backward: the second run may communicate (redistributions, gathers of
// units inside it), and must do so at one definite point of the outer backward, the same on every rank. Here that point
// is one node. PyTorch's other form recomputes when the first saved tensor is unpacked, which is wherever autograd gets
// to first. The price is that autograd::grad with chosen inputs and create_graph cannot work; they are refused, where
// the reentrant checkpoint of old returned wrong gradients.
//
// Reentrant checkpoints elsewhere need an input that requires a gradient, often a dummy, or the node is never reached
// and parameters inside train nothing. Here the outputs get their edge to the node whatever the inputs are; a node
// without incoming gradients to return is an ordinary root of the graph.
[[noreturn]] void NotSupported(const std::string& declared) {
  Diagnostic d = MakeDiagnostic(Finding::kNotSupported, "a recomputed module cannot be differentiated in this way");
  d.declared = declared;
  d.required = "backward() without the arguments inputs and create_graph";
  throw PlanError({std::move(d)});
}

class RecomputeNode final : public autograd::Node {
 public:
  RecomputeNode(CallRunner::Inside inside, const std::vector<at::Tensor>& inputs, RunState state,
                std::shared_ptr<KeptResults> kept, autograd::edge_list&& edges)
      : Node(std::move(edges)), inside_(std::move(inside)), state_(std::move(state)), kept_(std::move(kept)) {
    for (const at::Tensor& input : inputs) {
      needs_gradient_.push_back(input.defined() && input.requires_grad());
      saved_.emplace_back(input, /*is_output=*/false);
    }
  }

  autograd::variable_list apply(autograd::variable_list&& gradients) override {
    if (!autograd::Engine::get_default_engine().is_checkpoint_valid())
      NotSupported("autograd::grad, or backward with the argument inputs");
    if (at::GradMode::is_enabled()) NotSupported("backward with create_graph");
    // Detached inputs are the leaves of the second run: its backward stops there, and their .grad is what the outer
    // backward continues with. SavedVariable raises if an input was changed in place in between.
    std::vector<at::Tensor> inputs;
    for (size_t i = 0; i < saved_.size(); ++i) {
      at::Tensor input = saved_[i].unpack();
      if (input.defined()) input = input.detach().set_requires_grad(needs_gradient_[i]);
      inputs.push_back(std::move(input));
    }
    std::vector<at::Tensor> outputs;
    {
      const at::AutoGradMode with_gradients(true);
      const RunStateScope as_before(state_);
      outputs = RunAgain(inputs);
    }
    // `gradients` has one entry for each differentiable output, in order. An output may depend on no parameter and no
    // input that trains; then it requires no gradient in the second run, and its gradient ends here.
    std::vector<at::Tensor> roots;
    std::vector<at::Tensor> root_gradients;
    for (size_t i = 0, k = 0; i < outputs.size(); ++i) {
      if (!IsDifferentiable(outputs[i])) continue;
      at::Tensor gradient = std::move(gradients[k++]);
      if (!gradient.defined() || !outputs[i].requires_grad()) continue;
      roots.push_back(std::move(outputs[i]));
      root_gradients.push_back(std::move(gradient));
    }
    outputs.clear();  // what is not a root need not live through the nested backward
    if (!roots.empty()) {
      const at::AutoGradMode with_gradients(true);
      autograd::backward(roots, root_gradients);
    }
    autograd::variable_list result;
    for (size_t i = 0; i < inputs.size(); ++i) {
      result.push_back(needs_gradient_[i] ? std::as_const(inputs[i]).grad() : at::Tensor());
    }
    return result;
  }

  // After a backward without retain_graph: everything the node kept is freed, the module's arguments too.
  void release_variables() override {
    saved_.clear();
    inside_ = nullptr;
    if (kept_) kept_->Forget();
  }
  std::string name() const override { return "RecomputeNode"; }

  static bool IsDifferentiable(const at::Tensor& tensor) {
    return tensor.defined() && (tensor.is_floating_point() || tensor.is_complex());
  }

 private:
  std::vector<at::Tensor> RunAgain(const std::vector<at::Tensor>& inputs) {
    if (!kept_) return inside_(inputs);
    KeptResults::Replayer replayer(*kept_);
    const OperatorScope scope(replayer);
    return inside_(inputs);
  }

  CallRunner::Inside inside_;
  RunState state_;
  std::shared_ptr<KeptResults> kept_;  // none: everything is recomputed
  std::vector<autograd::SavedVariable> saved_;
  std::vector<bool> needs_gradient_;
};

}  // namespace

std::vector<at::Tensor> Recompute(const CallRunner::Inside& inside, std::vector<at::Tensor> inputs,
                                  const std::optional<KeptResults::Policy>& policy,
                                  std::shared_ptr<RandomStreams> streams) {
  if (!at::GradMode::is_enabled()) return inside(std::move(inputs));
  // Before the first run draws or changes anything.
  RunState state = RunState::Now(inputs, std::move(streams));
  autograd::edge_list edges;
  for (const at::Tensor& input : inputs) {
    edges.push_back(input.defined() && input.requires_grad() ? autograd::impl::gradient_edge(input) : autograd::Edge());
  }
  // The node saves the inputs as SavedVariables, which check versions and drop references with the graph. Parameters
  // are not inputs: the second run reads them through the module, so under fsdp it reads what is gathered then.
  const std::shared_ptr<KeptResults> kept = policy ? std::make_shared<KeptResults>(*policy) : nullptr;
  const auto node = std::shared_ptr<RecomputeNode>(
      new RecomputeNode(inside, inputs, std::move(state), kept, std::move(edges)), autograd::deleteNode);
  std::vector<at::Tensor> outputs;
  {
    const at::NoGradGuard no_grad;
    if (kept) {
      KeptResults::Recorder recorder(*kept);
      const OperatorScope scope(recorder);
      outputs = inside(inputs);
    } else {
      outputs = inside(inputs);
    }
    // An input that is returned has a history of its own, which the edge below would overwrite.
    for (at::Tensor& output : outputs) {
      for (const at::Tensor& input : inputs) {
        if (output.defined() && output.is_same(input)) output = output.view_as(output);
      }
    }
  }
  // Every floating-point output requires a gradient from here on, even if nothing inside trains: whether something does
  // is known only after a run with gradients.
  for (at::Tensor& output : outputs) {
    if (RecomputeNode::IsDifferentiable(output)) autograd::create_gradient_edge(output, node);
  }
  return outputs;
}

}  // namespace moonshard
