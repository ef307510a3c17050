// Step: one forward and backward of a model under a plan; shared by eval, verify and explain --memory. A causal
// language model takes tokens, and its loss is computed here unless the model returns a loss. Any other exported
// program takes its inputs by name, and must return the loss if a step needs one.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dsl/commands/cli/options.h"
#include "dsl/planning/resolve_model/resolve_model.h"
#include "engine/models/causal_lm.h"
#include "engine/runtime/apply/applied_plan.h"
#include "engine/runtime/redistribute/redistribute.h"

namespace moonshard {

// Opens the mesh of a verb on the device and with the backend and timeouts of `run`. Collective. In this process,
// float32 convolutions on a GPU are then computed in float32; the default of cuDNN is TF32, with 10 bits of mantissa,
// and the verbs compare numbers. Throws PlanError as DeviceMesh does.
DeviceMesh OpenMesh(const MeshShape& shape, const RunOptions& run);
// Opens a mesh of the axis tp alone: the ranks of this rank's group along tp in `mesh`, with groups of its own.
// Collective over that group. Throws PlanError as DeviceMesh does.
DeviceMesh OpenTpMesh(const DeviceMesh& mesh, const RunOptions& run);
// The number of experts in the config; 1 without experts.
int64_t ExpertsOf(const ModelConfig& config);
// The dtype of the parameters: the requested dtype, else that of the program, of the config, or of the checkpoint;
// nullopt if none of them has one. Throws PlanError (kBadInput) for a dtype that parameters cannot have.
std::optional<c10::ScalarType> ParameterType(const RunOptions& run, const ModelFolder& folder);

// MakeSharded makes the reference model or the program in the dtype `type` and shards it. The parameters have no values
// yet, except those whose values the program's archive contains. LoadWeights then loads the checkpoint. `trains`:
// whether the gradients of a step are used, in which case the plan must reduce them over dp
// (ApplyOptions::independent_replicas). Collective over the mesh. Throws PlanError.
struct ShardedModel {
  CausalLm model;                    // of a program with inputs by name: only architecture, module and recipes
  std::shared_ptr<Program> by_name;  // a program that is not a causal language model; else nullptr
  std::shared_ptr<const ExportedProgram> program;  // the program that the model was made from; null: a reference model
  std::shared_ptr<AppliedPlan> applied;
  int64_t vocabulary = 0;  // 0: a program with inputs by name whose config has no vocab_size
};
ShardedModel MakeSharded(const ModelOptions& options, const ModelFolder& folder, const DeviceMesh& mesh,
                         std::optional<c10::ScalarType> type, bool trains = true);

// Loads the weights from the checkpoint of the folder. For a program, its recipes say how each parameter is computed
// from the tensors of the checkpoint (WeightRecipes). Does nothing if the folder has no checkpoint and the program
// contains the weights. Returns the findings of LoadCheckpoint. Throws PlanError (kMissingTensor) if neither the folder
// nor the program has weights.
Diagnostics LoadWeights(const ShardedModel& model, const ModelFolder& folder);

// Returns the folder for a run of its model under the plan. A program whose loss is CausalLmLoss is run without the
// loss (WithoutLoss) if the plan leaves the logits sharded: the program's loss cannot be computed from a shard of the
// vocabulary, but the same loss of the gathered logits can.
ModelFolder WithoutLossOfShards(const ModelOptions& options, ModelFolder folder);

// The model with its weights, twice: sharded by the plan on the mesh, and unsharded on every rank. The unsharded model
// is the same plan applied on a mesh of one rank, so both call the same modules, and its redistributions do nothing.
// Both are in evaluation mode, since dropout would differ. Factors of adapters are drawn anew: with the zeros that B
// begins with, the adapters would have no effect on outputs. `operators`: the unsharded model runs the operators of the
// sharded one (DeviceMesh::Recording, as_if_tp) instead of those of the model without a plan. Collective over the mesh.
// Throws PlanError.
struct SideBySide {
  ShardedModel sharded;
  ShardedModel alone;
};
SideBySide LoadSideBySide(const ModelOptions& options, const ModelFolder& folder, const DeviceMesh& mesh,
                          std::optional<c10::ScalarType> type, bool operators = false);

// The input tensors of one step, on one device. A program with inputs by name uses only `named`, and a causal
// language model the other fields.
//
// Under a plan whose ranks of cp pass their own tokens (inputs = "own"), the file and the labels have full rows, and
// every other field has the tokens of this rank, s of S.
struct Inputs {
  at::Tensor ids;     // int64 [B, S]
  at::Tensor labels;  // int64 [B, S]; the ids if the file has no labels; none over a boundary of documents
  std::optional<at::Tensor> attention_mask;
  std::optional<at::Tensor> position_ids;        // [B or 1, S]
  std::optional<at::Tensor> document_ids = {};   // [B or 1, S], of a row that holds several documents (documents.h)
  std::map<std::string, at::Tensor> named = {};  // inputs of ShardedModel::by_name, in their dtypes
};
// Reads the inputs from a file. Throws PlanError with the errors of ReadTensorFile, or with all errors of the inputs
// (kBadInput), among them document_ids for a program.
Inputs ReadInputs(const std::string& path, const ShardedModel& model, int64_t micro_batches, c10::Device device);

// The largest number of tokens in a generated input on a device other than meta; a comparison needs no more.
inline constexpr int64_t kMostGeneratedTokens = int64_t{1} << 17;

// Reads the inputs from `path` or, if it is "", generates them. `tokens` is "B,S", and a causal language model gets ids
// of shape [B, S]. If it is "", the shape is [2, 13], because few mesh sizes divide 13, or the nearest shape that the
// program accepts. A program with inputs by name gets every input by its kind and shape: ids within the vocabulary, and
// floating-point numbers from a seed. Its sizes are those of the exported example, except that batch and lengths are
// those of `tokens`, if given. On the meta device there are no values; on other devices there are at most
// kMostGeneratedTokens tokens. Throws PlanError: as ReadInputs; for an invalid `tokens`; kNotSupported for an input
// that cannot be generated (a grid).
Inputs MadeUpInputs(const std::string& path, const std::string& tokens, const ShardedModel& model, c10::Device device);

struct StepOptions {
  bool grads = true;
  int64_t micro_batches = 1;  // number of micro-batches; their gradients are accumulated
};

struct StepResult {
  // The outputs of the model by name, floating-point ones in float32. A causal language model has logits [B, S, V] and
  // loss []; a program has all outputs that it names, except those in `left_out`.
  std::vector<std::pair<std::string, at::Tensor>> outputs;
  // Names of outputs that micro-batches do not give: their first dim is not the batch, so the outputs of the
  // micro-batches cannot be concatenated.
  std::vector<std::string> left_out;
  // "model": the loss that the model returned. "next tokens": the mean cross-entropy of the next tokens, computed from
  // the logits. "": there is no loss.
  std::string loss_of;
  double forward_s = 0;
  double backward_s = 0;

  const at::Tensor& loss() const;  // from `outputs`; undefined if there is none
};
// Runs a step. The loss contains that of the routers (RouterLosses), as the loss of transformers does with
// output_router_logits; of micro-batches, their mean. Throws PlanError: kBadInput for gradients of a program without a
// loss; kNotSupported for micro-batches of a program with inputs by name, and for micro-batches or sharded logits of a
// program whose own loss is not CausalLmLoss (OwnLossDiffers).
StepResult RunStep(const ShardedModel& model, const Inputs& inputs, const StepOptions& options);

// Adds `more`. The losses are counted by groups of their own.
void AddTo(CollectiveCounts& sum, const CollectiveCounts& more);

// Returns the loss of one forward, with its autograd graph; `inputs` may be on the meta device. Throws PlanError:
// kBadInput for a program with inputs by name that returns no loss; kNotSupported for sharded logits of a program whose
// own loss is not CausalLmLoss.
at::Tensor LossOf(const ShardedModel& model, const Inputs& inputs);

}  // namespace moonshard
