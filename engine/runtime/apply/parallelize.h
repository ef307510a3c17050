// Parallelize: the public function that applies a plan to a model.
//
//   auto model = moonshard::Parallelize(net, plan, mesh);       // net: a holder or shared_ptr of a torch::nn::Module
//   torch::optim::AdamW optimizer(model.parameters(), 3e-4);
//   auto loss = model.forward(batch).sum(); loss.backward();
//
// Reads the live tree, resolves the plan against it (engine/plan/resolve) and applies the plan. Reading and resolving
// leave the model unchanged. The first stage that fails throws PlanError with its diagnostics. Errors are everything
// that `moonshard check` reports as an error, and a dp axis over which the plan reduces no gradients
// (ApplyOptions::independent_replicas allows such an axis). Warnings and notes go to ApplyOptions::on_findings:
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

// The return type of ParallelModel::parameters(): a vector of tensors with its own C++ type, so that the compiler can
// reject functions that are wrong for shards.
class ShardedParameters : public std::vector<at::Tensor> {
  using std::vector<at::Tensor>::vector;
};

}  // namespace moonshard

namespace torch::nn::utils {
// LibTorch's clip_grad_norm_ would use the norm of this rank's shards instead of the norm of the full gradients: each
// rank would scale by a different factor, and the copies of a replicated parameter would become different. Use
// moonshard::ClipGradNorm(model, max_norm). The compiler rejects a call only if the argument has the type of
// model.parameters(). A list of the same tensors from elsewhere (net->parameters()) cannot be rejected: LibTorch scales
// through grad().data(), which does not even change the gradient's version counter. TypeScope reports a norm of shards
// in a step that it checks; DriftCheck reports that ranks scaled by different factors.
double clip_grad_norm_(const moonshard::ShardedParameters&, double, double = 2.0, bool = false) = delete;
}  // namespace torch::nn::utils

namespace moonshard {

// Applies a plan as Parallelize does, and returns the AppliedPlan without the ParallelModel wrapper, for callers that
// own the model. Collective over the mesh. Throws PlanError.
std::shared_ptr<AppliedPlan> ParallelizeModule(torch::nn::Module& root, const Plan& plan, const DeviceMesh& mesh,
                                               const ApplyOptions& options = {});

// A model with a plan. A handle: copies share the model and the plan.
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

  // This rank's shards of the parameters, for an optimizer. Tied parameters are listed once: LibTorch's own
  // parameters() repeats them, and an optimizer would step them twice.
  ShardedParameters parameters() const {
    ShardedParameters out;
    for (const LiveParameter& parameter : applied_->parameters()) {
      if (!parameter.is_buffer) out.push_back(parameter.tensor);
    }
    return out;
  }

  AppliedPlan& applied() const { return *applied_; }
  operator AppliedPlan&() const { return *applied_; }  // NOLINT: a model is accepted as an AppliedPlan

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
