// Setup: the parts of a training run from its command line: ranks, data, model, initial weights, optimizer.
// Each is a few calls of the public API; all throw PlanError with every error found. Collective: every rank calls them.
// Stage after: train.cc, the loop.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dsl/commands/cli/options.h"
#include "dsl/commands/train/batches.h"
#include "dsl/embed/moonshard.h"

namespace moonshard {

DeviceMesh OpenMesh(const TrainVerb& verb);

// Throws the errors of all ranks on every rank, with the numbers of the ranks that have them; nothing where no rank has
// any. `what` is an infinitive: "open the data".
void ThrowTogether(const DeviceMesh& mesh, const std::string& what, const Diagnostics& errors);

// `paths` in batches of `verb.batch` rows, each rank's rows in `micro_batches` parts.
Batches OpenData(const std::vector<std::string>& paths, const TrainVerb& verb, const DeviceMesh& mesh,
                 const ModelConfig& config, int64_t micro_batches);

// The reference model without storage, under the plan that ResolveModel has for it: chosen and evaluated as for every
// other verb, isolated if that was requested, on every rank; its findings are in plan().findings. Throws kNotSupported
// for a mesh with data-parallel ranks under a plan that does not reduce their gradients.
struct ShardedLm {
  CausalLm net;
  std::shared_ptr<AppliedPlan> model;
};
ShardedLm MakeModel(const TrainVerb& verb, const ModelConfig& config, const DeviceMesh& mesh);

// Initial weights: from --init, or loaded from the model directory, or those of a program that holds them. Returns
// warnings. kMissingTensor: a program without weights in place of a directory.
Diagnostics FirstWeights(const TrainVerb& verb, const ModelConfig& config, const CausalLm& net, AppliedPlan& model);

torch::optim::AdamW MakeOptimizer(const TrainVerb& verb, const AppliedPlan& model);
Schedule ScheduleOf(const TrainVerb& verb);
// The dtype of matrix products; everything else is float32, or float64 where this is.
c10::ScalarType ComputeType(const TrainVerb& verb);
// The dtype of everything else, "float32".
std::string StateType(const TrainVerb& verb);

// Every option that changes what is computed, as a JSON text that must be equal on all ranks and is saved with each
// step.
std::string Describe(const TrainVerb& verb);

}  // namespace moonshard
