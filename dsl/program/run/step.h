// Step: one forward and backward of a reference architecture under a plan; what eval and verify share.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include "dsl/planning/resolve_model/resolve_model.h"
#include "dsl/program/cli/options.h"
#include "engine/models/causal_lm.h"
#include "engine/runtime/apply/applied_plan.h"
#include "engine/runtime/redistribute/redistribute.h"

namespace moonshard {

MeshOptions MeshOptionsOf(const RunOptions& run);
// The number of experts in the config; 1 without experts.
int64_t ExpertsOf(const ModelConfig& config);
// The dtype of computation: the requested one, else that of the config, else that of the checkpoint. PlanError (kBadInput).
std::optional<c10::ScalarType> ParameterType(const RunOptions& run, const ModelFolder& folder);

// A reference model made without storage and sharded; LoadCheckpoint fills it. `trains`: whether the gradients of a step
// matter, for which a plan must reduce them over dp (ApplyOptions::independent_replicas). Collective over the mesh; PlanError.
struct ShardedModel {
  CausalLm model;
  std::shared_ptr<AppliedPlan> applied;
  int64_t vocabulary = 0;
};
ShardedModel MakeSharded(const ModelOptions& options, const ModelFolder& folder, const DeviceMesh& mesh,
                         std::optional<c10::ScalarType> type, bool trains = true);

// Fills the model from the checkpoint of the folder, by the recipes of the program where there is one. As LoadCheckpoint.
Diagnostics LoadWeights(const ShardedModel& model, const ModelFolder& folder);

// The checkpoint under the plan on the mesh, and on every rank by itself on a mesh of one rank, where every
// redistribution is the identity and the same modules are called. Collective over the mesh; PlanError.
struct SideBySide {
  ShardedModel sharded;
  ShardedModel alone;
};
SideBySide LoadSideBySide(const ModelOptions& options, const ModelFolder& folder, const DeviceMesh& mesh,
                          std::optional<c10::ScalarType> type);

// The tensors of one step, on one device. ids, labels, attention_mask: int64 [B, S]; position_ids: [B or 1, S].
struct Inputs {
  at::Tensor ids;
  at::Tensor labels;  // the ids where the file has none
  std::optional<at::Tensor> attention_mask;
  std::optional<at::Tensor> position_ids;
};
// PlanError: what ReadTensorFile reports; kBadInput, all at once.
Inputs ReadInputs(const std::string& path, int64_t vocabulary, int64_t micro_batches, c10::Device device);

// `path` read, or for "" generated ids: int64 [B, S] of `tokens` ("B,S"; "": 2 rows of 13, which few meshes
// divide). PlanError as ReadInputs, and of a bad `tokens`.
Inputs MadeUpInputs(const std::string& path, const std::string& tokens, int64_t vocabulary, c10::Device device);

// Logits that the plan left in shards of the vocabulary, gathered for the loss and the file; in a group of its own, so
// that the step's collectives are counted alone.
class FullLogits {
 public:
  FullLogits(const AppliedPlan& applied, int64_t vocabulary);
  at::Tensor operator()(at::Tensor logits) const;

 private:
  std::optional<TensorRedistribution> move_;
};

struct StepOptions {
  bool grads = true;
  int64_t micro_batches = 1;  // equal parts of the batch, gradients accumulated
};

struct StepResult {
  at::Tensor logits;  // float32 [B, S, V]
  at::Tensor loss;    // float32 []
  double forward_s = 0;
  double backward_s = 0;
};
StepResult RunStep(const CausalLm& model, const FullLogits& full, const Inputs& inputs, const StepOptions& options);

}  // namespace moonshard
