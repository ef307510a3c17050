// Saves: the steps of a run on disk, and resuming from them: how a host uses TrainingCheckpoints.
#pragma once

#include <optional>

#include "dsl/embed/moonshard.h"
#include "dsl/program/cli/options.h"
#include "dsl/program/train/batches.h"
#include "dsl/program/train/report.h"

namespace moonshard {

// Does nothing without --save. `recipes`: CausalLm's. All other arguments outlive it; all functions are collective, and throw PlanError.
class Saves {
 public:
  Saves(const TrainVerb& verb, const DeviceMesh& mesh, AppliedPlan& model, const ModelConfig& config,
        const WeightRecipes& recipes, torch::optim::Optimizer& optimizer, Batches& data, Report& report);

  // Loads the latest step, on the same mesh or another: returns its number of steps; nothing without a step.
  // kBadInput for a directory with a run without --resume, and for a run on other data.
  std::optional<int64_t> Resume();
  // Saves in the background. A failed save is reported at the next call, and the run continues.
  void Begin(int64_t step);
  // Saves the run's last step, unless it is saved, and waits for it.
  void End(int64_t step);

 private:
  void Finish();

  const TrainVerb& verb_;
  Batches& data_;
  Report& report_;
  TrainingState state_;
  std::optional<TrainingCheckpoints> checkpoints_;
  std::optional<int64_t> saved_;   // the newest step on disk
  std::optional<int64_t> saving_;  // being written in the background
};

}  // namespace moonshard
