// TypeScope: proves the layouts of a step while it runs: put it around the forward and the backward of any model under a
// plan, on one process, with a Recording mesh and tiny sizes or the meta device, or on real ranks.
//
//   auto applied = moonshard::AppliedPlan::Apply(live, plan, moonshard::DeviceMesh::Recording(shape));
//   {
//     moonshard::TypeScope scope(*applied);
//     scope.Input(labels);
//     loss(model(ids), labels).backward();
//     proof = scope.Finish();
//   }
//
// Parameters have the types that the plan gives them. A tensor that enters the outermost planned call, or is named as an
// Input, is the same on every tp rank and a shard of the batch on the data-parallel axes. At each planned module what
// arrives and what its forward makes is held against what the plan declares, and goes on as declared, so that one fault
// gives one finding; in the end each parameter's gradient is.
// Stage before: apply, types. Stage after: whoever shows a Proof.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/analysis/types/operator_checker.h"
#include "engine/runtime/apply/applied_plan.h"

namespace moonshard {

struct Proof {
  std::vector<TypeFault> faults;  // in the order in which the step met them
  UnprovenOperators unproven;
  int64_t operators = 0;  // that ran
  int64_t assumed = 0;    // tensors from outside that were taken to be the same on every rank

  bool holds() const { return faults.empty() && unproven.empty(); }
};

struct TypeOptions {
  // Besides those of ATen, by name without overload ("mylib::rotate"); they win over them.
  std::vector<std::pair<std::string, OperatorRule>> rules = {};
  // Process groups that the model itself communicates over; they outlive the scope.
  std::vector<std::pair<const c10d::ProcessGroup*, MeshAxis>> groups = {};
  std::function<void(const CheckedOperator&)> observer = {};
};

// On one thread. One at a time for a plan.
class TypeScope {
 public:
  explicit TypeScope(AppliedPlan& applied, const TypeOptions& options = {});
  ~TypeScope();
  TypeScope(const TypeScope&) = delete;
  TypeScope& operator=(const TypeScope&) = delete;

  // A tensor of the batch that goes around the model: labels, a mask for the loss.
  void Input(const at::Tensor& tensor);
  // The loss is whole or a mean of the ranks' own batches; call it before the backward. Anything else is a fault.
  void Loss(const at::Tensor& loss);
  // The step threw this: a fault where it did.
  void Stopped(const std::string& what);
  // After the backward, or after what it threw: checks the gradients and closes the scope.
  Proof Finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The findings of a proof, with the lines of the plan and what to do about each.
Diagnostics ToDiagnostics(const Proof& proof, const CompiledPlan& plan);

}  // namespace moonshard
