// Saves: writes the checkpoints of a training run and resumes from them. It is also an example of how a C++ training
// program uses TrainingCheckpoints.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "dsl/commands/cli/options.h"
#include "dsl/commands/train/batches.h"
#include "dsl/commands/train/report.h"
#include "dsl/embed/moonshard.h"

namespace moonshard {

// Does nothing without --save. `recipes` are those of the CausalLm. All other arguments must outlive this object. All
// functions are collective and throw PlanError.
class Saves {
 public:
  // Claims the directory for this run. Throws kRunTaken if another run has claimed it.
  Saves(const TrainVerb& verb, const DeviceMesh& mesh, AppliedPlan& model, const ModelFolder& folder,
        const WeightRecipes& recipes, torch::optim::Optimizer& optimizer, Batches& data, Report& report);

  // Loads the checkpoint that the file `latest` names, else the newest valid one, whether it was saved on this mesh
  // or another. Returns its step, or nullopt if there is none. Throws kBadInput if config.json or the data differ from
  // the saved run and --accept-changes does not name the difference, and if the directory has a run but --resume is not
  // given; kCorruptData if no step is valid; kNotSupported if the optimizer was saved with another value of amsgrad.
  // The options of the optimizer are taken from the command line; differences from the saved options are reported.
  std::optional<int64_t> Resume();
  // Saves in the background. If the write fails (kWriteFailed), the run continues: this call reports it as a warning
  // where the save cannot begin (no file can be created), else the next call of Begin or End does. These calls throw
  // any other error of the save.
  void Begin(int64_t step);
  // Saves the last step of the run, unless it is saved already, and waits until it is written.
  void End(int64_t step);

 private:
  void Finish();
  void WarnOfDisk(const PlanError& error);
  std::optional<int64_t> StepToResume();
  void CompareConfig(int64_t step) const;
  void Load(int64_t step);
  // The options that a step keeps: Describe, and the adapters of the plan.
  std::string Options() const;

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
