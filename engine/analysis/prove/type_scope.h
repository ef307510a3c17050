// TypeScope: a scope around the forward and the backward of a model under a plan, which proves the layouts of the step
// while the step runs. The step can run in one process on a Recording mesh, with small sizes or on the meta device, or
// on real ranks.
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
// Input, is replicated along tp and cp (along cp a shard, if the plan declares the input so) and a shard of the batch
// along the data-parallel axes. At each planned module the checker compares the layouts of the inputs and outputs with
// the declared layouts. If a layout differs, the checker continues with the declared layout, so that one fault gives
// one finding. After the backward, the checker also compares the gradient of each parameter.
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
  // Additional rules, by name without overload ("mylib::rotate"). They have precedence over the built-in rules.
  std::vector<std::pair<std::string, OperatorRule>> rules = {};
  // Process groups that the model itself uses, each with its mesh axis. The groups must outlive the scope.
  std::vector<std::pair<const c10d::ProcessGroup*, MeshAxis>> groups = {};
  // Called for each operator of the step after it was checked.
  std::function<void(const CheckedOperator&)> observer = {};
  // The same step at tp=1, recorded by an earlier TypeScope. Sizes and numbers are compared with this record, which
  // must outlive the scope. Null: sizes and numbers are not compared, and the proof does not hold unless the mesh has
  // tp=1.
  const StepSizes* unsharded = nullptr;
  // The same for the step at cp=1 with the tp of the mesh, if the plan shards the sequence on cp. Set one of the two:
  // the step at cp=1 has to be compared with the step at tp=1 by itself, as ProveAtTwoSizes does.
  const StepSizes* without_cp = nullptr;
  // Receives the sizes of this step; must outlive the scope. Null: the sizes are not available after the scope.
  StepSizes* record = nullptr;
  // Tokens of the sequences of the step, if the plan shards them on cp. A rank's own tokens do not tell it where cp
  // does not divide the sequence. -1: shards of one length. On two factors of cp only numbers of tokens can be checked
  // of which all ranks have as many; otherwise the constructor throws PlanError (kNotSupported).
  int64_t length = -1;
  // What the loss is along the data-parallel axes, where the proof does not find out: a sum over the rank's rows of the
  // batch, or a mean that is the same on all ranks for equal rows. The proof lists it as an assumption where it relied
  // on it. A loss that is known to be the other one stays a fault.
  OperatorChecker::LossScale loss_scale = OperatorChecker::LossScale::kFollowed;
  // At a boundary that redistributes nothing, a declared layout may differ from the computed layout. true: the tensor
  // keeps the computed layout, and the difference is added to Proof::untrue instead of the faults. ProveAtTwoSizes sets
  // this option itself.
  bool believe_knowledge = false;
};

// Proves a step at tp=1 and at the tp of `shape`; if `shape` has cp, at cp=1 before. `run` builds the model, applies
// the plan on the given mesh, runs the step within a TypeScope with the given options, and returns the scope's proof.
// `run` is called on a Recording mesh with tp=1, then at least once on a Recording mesh of `shape` at `rank`. If shards
// have owners (Proof::has_owners), `run` is also called at the other ranks of tp. All meshes are on `device`. If
// `shape` has tp=1 and cp=1, `run` is called once. With cp, the proof of the mesh without cp is returned if it has
// faults. Every call must build the same model and the same inputs, which are the inputs of one data-parallel rank.
// Returns the proof at `rank`, or the proof of the first other rank whose proof fails. If the step throws at tp=1,
// returns the proof of the step at tp=1.
using StepOfMesh = std::function<Proof(const DeviceMesh& mesh, const TypeOptions& options)>;
Proof ProveAtTwoSizes(const MeshShape& shape, const StepOfMesh& run, TypeOptions options = {}, int64_t rank = 0,
                      c10::Device device = c10::Device(c10::kCPU));

// Use on one thread. An AppliedPlan has at most one open scope, and must outlive the scope. The constructor throws
// PlanError: kBadArgument if an operator_like of the plan refers to an operator without a rule.
class TypeScope {
 public:
  explicit TypeScope(AppliedPlan& applied, const TypeOptions& options = {});

  // A model of a step that calls several, each with a plan of its own: a generator and a discriminator, a policy and
  // its reference. In findings `name` stands in front of the paths of its modules.
  struct Model {
    std::string name;
    AppliedPlan& applied;
  };
  // The models are on one mesh, and their calls do not enclose each other. Throws PlanError also with kNotSupported:
  // the meshes differ, a plan of several shards the sequence on cp, or the plans reduce gradients over the
  // data-parallel axes in different ways.
  explicit TypeScope(const std::vector<Model>& models, const TypeOptions& options = {});
  ~TypeScope();
  TypeScope(const TypeScope&) = delete;
  TypeScope& operator=(const TypeScope&) = delete;

  // Declares a tensor of the batch that is not an input of the model: labels, a mask for the loss.
  void Input(const at::Tensor& tensor);
  // Checks the loss. Call before the backward. The loss must be replicated along tp and cp; along data-parallel axes it
  // may also be partial or varying, and must be a sum over the rank's rows if the plan sums gradients there, and a mean
  // if it averages them. Without this call a step on data-parallel ranks with a backward is unproven.
  void Loss(const at::Tensor& loss);
  // Reports an exception that the step threw, as a fault of the module that threw it.
  void Stopped(const std::string& what);
  // Call after the backward, or after an exception. Closes the scope, checks the gradients and returns the proof.
  Proof Finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace moonshard
