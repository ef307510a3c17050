// Setup: makes the mesh, data, model, initial weights and optimizer of a training run from the command line. Each
// function consists of a few calls of the public API and throws PlanError with every error found. Collective: every
// rank calls the functions in the same order.
// Stage after: train.cc, the loop.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dsl/commands/cli/options.h"
#include "dsl/commands/train/batches.h"
#include "dsl/commands/train/example_files.h"
#include "dsl/commands/train/loss.h"
#include "dsl/embed/moonshard.h"

namespace moonshard {

DeviceMesh OpenMesh(const TrainVerb& verb);

// Throws the errors of all ranks on every rank, with the numbers of the ranks that have them; does nothing if no rank
// has errors. `what` is an infinitive, for the message: "open the data".
void ThrowTogether(const DeviceMesh& mesh, const std::string& what, const Diagnostics& errors);

// Returns the kind of the data of --data and --eval-data, and sets what the command line leaves to it: --loss and
// --sequence. Data without a tensor `tokens` are examples if MODEL is a program. Throws the errors of all ranks on
// every rank: those of KindOfData; kBadInput for --eval-data of another kind, and for examples with --sequence,
// --loss-chunk or --loss next-tokens; ranks that find different kinds.
DataKind ResolveData(TrainVerb& verb, const DeviceMesh& mesh);

// Reads the model; without its checkpoint if --init makes new weights.
ModelFolder OpenFolder(const TrainVerb& verb);

// Opens `paths` as batches for `micro_batches` micro-batches, each as large as a micro-batch of the training data.
// If one rank has errors, every rank throws them.
Batches OpenData(DataKind kind, const std::vector<std::string>& paths, const TrainVerb& verb, const DeviceMesh& mesh,
                 const ModelFolder& folder, int64_t micro_batches);

// Makes the reference model or the program, without storage, and shards it by the plan of ResolveModel. Every rank
// chooses and evaluates the plan as every other verb does (in a child process with --isolate). The findings are in
// plan().findings of the model. Throws kNotSupported for a mesh with data-parallel ranks under a plan that does not
// reduce their gradients, and for --router-balance or --router-z of a model without experts. Of a program for examples,
// `net` has only the architecture, the module and the recipes.
struct ShardedLm {
  CausalLm net;
  std::shared_ptr<AppliedPlan> model;
};
ShardedLm MakeModel(DataKind kind, const TrainVerb& verb, const ModelFolder& folder, const DeviceMesh& mesh);

// Sets the initial weights: new ones from --init, else those of the model directory or of the program. Returns
// warnings, also those of PeftWarnings if the run is saved. Throws kMissingTensor for a program without weights as
// MODEL.
Diagnostics FirstWeights(const TrainVerb& verb, const ModelFolder& folder, const CausalLm& net, AppliedPlan& model);

// The loss that --loss names. `net` and `model` must outlive it. Throws PlanError: the errors of BatchLoss.
BatchLoss MakeLoss(DataKind kind, const TrainVerb& verb, const CausalLm& net, const AppliedPlan& model);

// Throws, on every rank, the errors that any rank's examples would have in a forward: sizes that the program does not
// take in training, or, of `held_out` (may be null), in evaluation. Leaves the module in training mode.
void CheckExamples(const DeviceMesh& mesh, const CausalLm& net, const BatchLoss& loss, const Batches& data,
                   const Batches* held_out);

// A warning (kNotSupported) if rows of documents are so long that the frequencies of longrope depend on the documents
// beside (documents.h), and with them the run on --micro-batches and the mesh.
Diagnostics CheckDocuments(const CausalLm& net, const Batches& data);

AdamW MakeOptimizer(const TrainVerb& verb, const AppliedPlan& model);
Schedule ScheduleOf(const TrainVerb& verb);
// The dtype of matrix products. Parameters, gradients and optimizer state are float32, or float64 if matrix products
// are float64.
c10::ScalarType ComputeType(const TrainVerb& verb);
// The dtype of parameters, gradients and optimizer state: "float32" or "float64".
std::string StateType(const TrainVerb& verb);

// Every option that affects the run, as a JSON text that must be equal on all ranks and is saved with each step.
std::string Describe(const TrainVerb& verb);

}  // namespace moonshard
