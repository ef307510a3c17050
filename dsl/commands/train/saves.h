// Saves: the steps of a run on disk, and resuming from them: how a host uses TrainingCheckpoints.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "dsl/commands/cli/options.h"
#include "dsl/commands/train/batches.h"
#include "dsl/commands/train/report.h"
#include "dsl/embed/moonshard.h"

namespace moonshard {

// Does nothing without --save. `recipes`: CausalLm's. All other arguments outlive it; all functions are collective, and
// throw PlanError.
class Saves {
 public:
  // Takes the directory: kRunTaken where another run has it.
  Saves(const TrainVerb& verb, const DeviceMesh& mesh, AppliedPlan& model, const ModelConfig& config,
        const WeightRecipes& recipes, torch::optim::Optimizer& optimizer, Batches& data, Report& report);

  // Loads the latest step, on the same mesh or another: returns its number of steps; nothing without a step. Where no
  // file `latest` names one, the newest that is whole. What is saved and cannot be as it was is compared: kBadInput for
  // another config.json and for other data, unless --accept-changes has it. Options of the optimizer are those of the
  // command line; what differs is reported. kBadInput for a directory with a run without --resume.
  std::optional<int64_t> Resume();
  // Saves in the background. A failed save is reported at the next call, and the run continues.
  void Begin(int64_t step);
  // Saves the run's last step, unless it is saved, and waits for it.
  void End(int64_t step);

 private:
  void Finish();
  std::optional<int64_t> StepToResume();
  void CompareConfig(int64_t step) const;
  void Load(int64_t step);

  const TrainVerb& verb_;
  const DeviceMesh& mesh_;
  const ModelConfig& config_;
  Batches& data_;
  Report& report_;
  TrainingState state_;
  std::optional<TrainingCheckpoints> checkpoints_;
  std::optional<int64_t> saved_;   // the newest step on disk
  std::optional<int64_t> saving_;  // being written in the background
};

}  // namespace moonshard
