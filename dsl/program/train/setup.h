// Setup: what a training run is made of, from the words it was started with: ranks, data, model, first weights, optimizer.
// Each is a few calls of the public API; all throw PlanError with everything that is wrong.
// Stage after: train.cc, the loop.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dsl/embed/moonshard.h"
#include "dsl/program/cli/options.h"
#include "dsl/program/train/batches.h"

namespace moonshard::train {

DeviceMesh OpenMesh(const TrainVerb& verb);

// `paths` in batches of `verb.batch`, in so many parts a rank.
Batches OpenData(const std::vector<std::string>& paths, const TrainVerb& verb, const DeviceMesh& mesh,
                 const ModelConfig& config, int64_t micro_batches);

// The reference model without storage, and the plan at work in it. Refuses a mesh whose ranks work on different data under
// a plan that does not bring their gradients together.
struct ShardedLm {
  CausalLm net;
  std::shared_ptr<AppliedPlan> model;
};
ShardedLm MakeModel(const TrainVerb& verb, const ModelConfig& config, const DeviceMesh& mesh);

// From the seed, or from the model directory. Returns warnings.
Diagnostics FirstWeights(const TrainVerb& verb, const ModelConfig& config, AppliedPlan& model);

torch::optim::AdamW MakeOptimizer(const TrainVerb& verb, const AppliedPlan& model);
Schedule ScheduleOf(const TrainVerb& verb);
// What products are made in; all else is float32, or float64 where this is.
c10::ScalarType ComputeType(const TrainVerb& verb);

// Every option that changes what is computed, as a text that all ranks must hold.
std::string Describe(const TrainVerb& verb);

}  // namespace moonshard::train
