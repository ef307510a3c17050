// Parallelize: the public way to put a plan to work in a model.
//
//   auto model = moonshard::Parallelize(net, plan, mesh);       // net: a holder or shared_ptr of a torch::nn::Module
//   torch::optim::AdamW optimizer(model.parameters(), 3e-4);
//   auto loss = model.forward(batch).sum(); loss.backward();
//
// Reads the live tree, resolves the plan against it (engine/plan/resolve) and applies it. Reading and resolving leave
// the model unchanged. The stage that fails throws PlanError with its diagnostics: whatever `moonshard check` refuses,
// and dp ranks whose gradients nothing reduces (ApplyOptions::independent_replicas allows them). Warnings and notes go
// to ApplyOptions::on_findings:
//
//   moonshard::Parallelize(net, plan, mesh, {.on_findings = [&](const moonshard::Diagnostics& found) {
//     if (mesh.rank() == 0) std::cerr << moonshard::ToText(found);
//   }});
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include "engine/plan/plan/plan.h"
#include "engine/runtime/apply/applied_plan.h"

namespace moonshard {

// What ParallelModel::parameters() returns: a vector of tensors with a type of its own, so that functions which are
// wrong for shards can be refused by the compiler.
class ShardedParameters : public std::vector<at::Tensor> {
  using std::vector<at::Tensor>::vector;
};

}  // namespace moonshard

namespace torch::nn::utils {
// On shards it would take this rank's norm for that of the model: each rank would scale by a number of its own, and
// what is replicated would drift apart. Use moonshard::ClipGradNorm(model, max_norm). The compiler sees this for
// model.parameters() alone. No run-time check is possible for other lists of the same tensors (net->parameters()):
// LibTorch scales through grad().data(), which leaves no trace in the gradient, not even in its version. TypeScope
// finds the norm of shards in a step that it watches, FindDrift the replicated parameters that have drifted.
double clip_grad_norm_(const moonshard::ShardedParameters&, double, double = 2.0, bool = false) = delete;
}  // namespace torch::nn::utils

namespace moonshard {

// Without the wrapper, for callers that keep the model themselves. Collective over the mesh; PlanError.
std::shared_ptr<AppliedPlan> ParallelizeModule(torch::nn::Module& root, const Plan& plan, const DeviceMesh& mesh,
                                               const ApplyOptions& options = {});

// A model under a plan. A handle: copies share the model and the plan.
template <class Net>
class ParallelModel {
 public:
  ParallelModel(Net net, std::shared_ptr<AppliedPlan> applied) : net_(std::move(net)), applied_(std::move(applied)) {}

  // The model's own forward.
  template <class... Arguments>
  auto forward(Arguments&&... arguments) {
    return net_->forward(std::forward<Arguments>(arguments)...);
  }
  Net& net() { return net_; }
  auto operator->() { return net_.operator->(); }

  // This rank's shards of the parameters, tied ones once (LibTorch's own parameters() repeats them, and an optimizer
  // would step them twice). What an optimizer is made with.
  ShardedParameters parameters() const {
    ShardedParameters out;
    for (const LiveParameter& parameter : applied_->parameters()) {
      if (!parameter.is_buffer) out.push_back(parameter.tensor);
    }
    return out;
  }

  AppliedPlan& applied() const { return *applied_; }
  operator AppliedPlan&() const { return *applied_; }  // NOLINT: so that free functions take a model

 private:
  Net net_;
  std::shared_ptr<AppliedPlan> applied_;
};

template <class Net>
ParallelModel<Net> Parallelize(Net net, const Plan& plan, const DeviceMesh& mesh, const ApplyOptions& options = {}) {
  auto applied = ParallelizeModule(*net, plan, mesh, options);
  return ParallelModel<Net>(std::move(net), std::move(applied));
}

}  // namespace moonshard
