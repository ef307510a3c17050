// TypeScope: proves the layouts of a step while it runs: a scope around the forward and the backward of any model under
// a plan, in one process, with a Recording mesh and small sizes or the meta device, or on real ranks.
//
//   const auto step = [&](const moonshard::DeviceMesh& mesh, const moonshard::TypeOptions& options) {
//     auto model = moonshard::Parallelize(Net(config), plan, mesh);
//     moonshard::TypeScope scope(model, options);
//     scope.Input(labels);
//     loss(model.forward(ids), labels).backward();
//     return scope.Finish();
//   };
//   moonshard::Proof proof = moonshard::ProveAtTwoSizes(shape, step);
//
// One TypeScope proves the layouts of the step that runs in it (layouts_hold). To prove that no number depends on the
// size of a shard, the step must also run at tp=1, as ProveAtTwoSizes does.
//
// Parameters have the types that the plan declares. A tensor that enters the outermost planned call, or is declared by
// Input, is replicated along tp and a shard of the batch along the data-parallel axes. At each planned module the
// inputs and outputs are compared with the declared layouts, and have these from then on, so that one fault gives one
// finding; after the backward the gradient of each parameter is compared too.
// Stage before: apply, types. Stage after: Proof (proof.h).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/analysis/prove/proof.h"
#include "engine/analysis/prove/step_sizes.h"
#include "engine/analysis/types/operator_checker.h"
#include "engine/runtime/apply/applied_plan.h"

namespace moonshard {

struct TypeOptions {
  // Additional rules by name without overload ("mylib::rotate"), with precedence over those of ATen.
  std::vector<std::pair<std::string, OperatorRule>> rules = {};
  // Process groups that the model itself uses. They must outlive the scope.
  std::vector<std::pair<const c10d::ProcessGroup*, MeshAxis>> groups = {};
  std::function<void(const CheckedOperator&)> observer = {};
  // The same step at tp=1, recorded by an earlier TypeScope: sizes and numbers are compared with it. Must outlive the
  // scope. Null: they are not compared, and the proof does not hold.
  const StepSizes* unsharded = nullptr;
  // Records the sizes of this step; must outlive the scope.
  StepSizes* record = nullptr;
  // If a declared layout differs from the computed one where nothing is redistributed, the computed one is kept and the
  // difference goes to Proof::untrue, not to the faults. ProveAtTwoSizes sets it where needed.
  bool believe_knowledge = false;
};

// Proves a step at tp=1 and at the tp of `shape`. `run` builds the model, applies the plan on the given mesh, runs the
// step within a TypeScope with the given options, and returns the scope's proof. It is called on a Recording mesh with
// tp=1, then at least once on a Recording mesh of `shape` at `rank`, and, if shards have owners (Proof::has_owners), at
// the other ranks of tp; all on `device`. If `shape` has tp=1 it is called once. Every call must build the same model
// and inputs; the inputs are those of one data-parallel rank. Returns the proof at `shape`, or that of the first other
// rank that fails; if the step throws at tp=1, the proof with that fault.
using StepOfMesh = std::function<Proof(const DeviceMesh& mesh, const TypeOptions& options)>;
Proof ProveAtTwoSizes(const MeshShape& shape, const StepOfMesh& run, TypeOptions options = {}, int64_t rank = 0,
                      c10::Device device = c10::Device(c10::kCPU));

// Use on one thread. At most one open scope per AppliedPlan, which must outlive it.
class TypeScope {
 public:
  explicit TypeScope(AppliedPlan& applied, const TypeOptions& options = {});
  ~TypeScope();
  TypeScope(const TypeScope&) = delete;
  TypeScope& operator=(const TypeScope&) = delete;

  // A tensor of the batch that is not an input of the model: labels, a mask for the loss.
  void Input(const at::Tensor& tensor);
  // Checks the loss, before the backward: it must be replicated along tp; along dp it may be a partial mean.
  void Loss(const at::Tensor& loss);
  // Reports an exception that the step threw, as a fault of the module that threw it.
  void Stopped(const std::string& what);
  // After the backward, or after an exception: checks the gradients and closes the scope.
  Proof Finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace moonshard
