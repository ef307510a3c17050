// Saves: a run's steps on disk, and where it goes on. What a host does with TrainingCheckpoints, in one place.
#pragma once

#include <optional>

#include "dsl/embed/moonshard.h"
#include "dsl/program/cli/options.h"
#include "dsl/program/train/batches.h"
#include "dsl/program/train/report.h"

namespace moonshard::train {

// Does nothing at all without --save. Everything given outlives it; all functions are collective, and throw PlanError.
class Saves {
 public:
  Saves(const TrainVerb& verb, const DeviceMesh& mesh, AppliedPlan& model, torch::optim::Optimizer& optimizer,
        Batches& data, Report& report);

  // Loads the latest step, on the same mesh or another: how many steps it was saved after; nothing where there is none.
  // kBadInput for a directory that holds a run where --resume was not said, and for a run through other data.
  std::optional<int64_t> Resume();
  // Saves while training goes on. One that failed to write is said at the next call, and the run goes on.
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

}  // namespace moonshard::train
