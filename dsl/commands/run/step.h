// Step: one forward and backward of a model under a plan; what eval, verify and explain --memory share. A causal
// language model is given tokens and its loss is made here; any other program is given its inputs by name and returns
// its own loss.
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

MeshOptions MeshOptionsOf(const RunOptions& run);
// The number of experts in the config; 1 without experts.
int64_t ExpertsOf(const ModelConfig& config);
// The dtype of computation: the requested one, else that of the program, of the config, or of the checkpoint. PlanError
// (kBadInput).
std::optional<c10::ScalarType> ParameterType(const RunOptions& run, const ModelFolder& folder);

// A reference model, or the program in the dtype `type`, made without storage and sharded; LoadCheckpoint fills it.
// `trains`: whether the gradients of a step matter, for which a plan must reduce them over dp
// (ApplyOptions::independent_replicas). Collective over the mesh; PlanError.
struct ShardedModel {
  CausalLm model;                                  // of a program that is given by name the module and recipes alone
  std::shared_ptr<Program> by_name;                // a program that is no causal language model; else nullptr
  std::shared_ptr<const ExportedProgram> program;  // of which it was made; null: a reference model
  std::shared_ptr<AppliedPlan> applied;
  int64_t vocabulary = 0;  // 0: a program by name whose config has none
};
ShardedModel MakeSharded(const ModelOptions& options, const ModelFolder& folder, const DeviceMesh& mesh,
                         std::optional<c10::ScalarType> type, bool trains = true);

// Fills the model from the checkpoint of the folder, by the recipes of the program where there is one. As
// LoadCheckpoint.
Diagnostics LoadWeights(const ShardedModel& model, const ModelFolder& folder);

// The checkpoint under the plan on the mesh, and on every rank by itself on a mesh of one rank, where every
// redistribution is the identity and the same modules are called; both in evaluation mode, since dropout would differ.
// Collective over the mesh; PlanError.
struct SideBySide {
  ShardedModel sharded;
  ShardedModel alone;
};
SideBySide LoadSideBySide(const ModelOptions& options, const ModelFolder& folder, const DeviceMesh& mesh,
                          std::optional<c10::ScalarType> type);

// The tensors of one step, on one device: those of a causal language model, or all by name.
struct Inputs {
  at::Tensor ids;     // int64 [B, S]
  at::Tensor labels;  // int64 [B, S]; the ids where the file has none
  std::optional<at::Tensor> attention_mask;
  std::optional<at::Tensor> position_ids;        // [B or 1, S]
  std::map<std::string, at::Tensor> named = {};  // of ShardedModel::by_name, in the dtypes of its inputs
};
// PlanError: what ReadTensorFile reports; kBadInput, all at once.
Inputs ReadInputs(const std::string& path, const ShardedModel& model, int64_t micro_batches, c10::Device device);

// The most tokens of a generated input whose values are computed: a comparison needs no more.
inline constexpr int64_t kMostGeneratedTokens = int64_t{1} << 17;

// `path` read, or for "" generated: ids [B, S] of `tokens` ("B,S"; "": 2 rows of 13, which few meshes divide, or as
// near as a program takes). Of a program by name every input, by its kind and shape: ids within the vocabulary,
// floating-point numbers from a seed, sizes as in the example that was exported or, of batch and lengths, those of
// `tokens`. On the meta device without values, elsewhere at most kMostGeneratedTokens. PlanError as ReadInputs, and of
// a bad `tokens`; kNotSupported for an input that has to be given (a grid).
Inputs MadeUpInputs(const std::string& path, const std::string& tokens, const ShardedModel& model, c10::Device device);

// Logits that the plan left in shards of the vocabulary, gathered for the loss and the file; in a group of its own, so
// that the step's collectives are counted alone.
class FullLogits {
 public:
  FullLogits(const AppliedPlan& applied, int64_t vocabulary);
  at::Tensor operator()(at::Tensor logits) const;
  bool moves() const { return move_.has_value(); }  // whether the plan leaves logits in shards

 private:
  std::optional<TensorRedistribution> move_;
};

struct StepOptions {
  bool grads = true;
  int64_t micro_batches = 1;  // equal parts of the batch, gradients accumulated
};

struct StepResult {
  // What the model returned, by name: logits float32 [B, S, V] and loss float32 []; of a program by name all of its
  // outputs, floating-point ones in float32.
  std::vector<std::pair<std::string, at::Tensor>> outputs;
  // "model": the loss is the one that the model returned; "next tokens": the mean cross-entropy of the next tokens,
  // computed of its logits; "": there is none.
  std::string loss_of;
  double forward_s = 0;
  double backward_s = 0;

  const at::Tensor& loss() const;  // of outputs; undefined where there is none
};
// PlanError: kBadInput for gradients of a program without a loss; kNotSupported for micro-batches of a program by name.
StepResult RunStep(const ShardedModel& model, const Inputs& inputs, const StepOptions& options);

// The loss of one forward, with its graph; `inputs` may be on the meta device. PlanError (kBadInput): a program without
// one.
at::Tensor LossOf(const ShardedModel& model, const Inputs& inputs);

}  // namespace moonshard
