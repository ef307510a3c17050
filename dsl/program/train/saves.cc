// At most one save is in progress. Begin waits for the one before, so saves that are slower than the interval between
// them delay the run instead of taking more and more memory for copies of the state.
// A write that fails is a warning in the middle of a run: a full disk may be freed before the next save, and steps
// already taken are worth more than an early end. Other errors mean that ranks disagree or that the state is wrong, and
// end the run. The last save of a run throws in any case: no later one replaces it.
#include "dsl/program/train/saves.h"

#include <algorithm>

namespace moonshard {

Saves::Saves(const TrainVerb& verb, const DeviceMesh& mesh, AppliedPlan& model, const ModelConfig& config,
             const WeightRecipes& recipes, torch::optim::Optimizer& optimizer, Batches& data, Report& report)
    : verb_(verb), data_(data), report_(report), state_{.model = &model, .optimizer = &optimizer} {
  if (verb.save.empty()) return;
  TrainingCheckpointOptions options;
  options.keep = verb.keep;
  if (IsProgramPath(verb.model.model)) {
    options.model_files["config.json"] = WriteJson(config.json(), 2) + "\n";
  } else {
    options.model_folder = verb.model.model;
  }
  options.recipes = recipes;
  options.timeout = mesh.timeout();
  checkpoints_.emplace(TrainingCheckpoints::Open(verb.save, mesh, options));
}

std::optional<int64_t> Saves::Resume() {
  const std::optional<int64_t> latest = checkpoints_ ? checkpoints_->Latest() : std::nullopt;
  if (!latest) return std::nullopt;
  if (!verb_.resume) {
    Diagnostic d = MakeDiagnostic(Finding::kBadInput,
                                  "the directory holds a run already, saved after step " + std::to_string(*latest));
    d.path = verb_.save;
    d.required = "--resume to resume it, or another directory";
    throw PlanError({d});
  }
  const LoadedStep loaded = checkpoints_->Load(state_);
  const Diagnostics other_data = data_.Seek(state_.host["data"]);
  if (HasErrors(other_data)) throw PlanError(other_data);
  report_.Say("resumed after step " + std::to_string(loaded.step) + ", saved on " + loaded.mesh.ToString());
  report_.Warn(loaded.findings);
  saved_ = loaded.step;
  return saved_;
}

void Saves::Begin(int64_t step) {
  if (!checkpoints_) return;
  Finish();
  state_.host["data"] = data_.Position();
  checkpoints_->SaveInBackground(state_, step);
  saving_ = step;
}

void Saves::Finish() {
  if (!saving_) return;
  try {
    report_.Warn(checkpoints_->Wait());
    saved_ = saving_;
    report_.Saved(*saved_);
  } catch (const PlanError& error) {
    const auto fatal = [](const Diagnostic& d) { return d.finding != Finding::kWriteFailed; };
    if (std::ranges::any_of(error.diagnostics(), fatal)) throw;
    report_.Warn(error.diagnostics());
  }
  saving_.reset();
}

void Saves::End(int64_t step) {
  if (!checkpoints_) return;
  Finish();
  if (saved_ == step) return;
  state_.host["data"] = data_.Position();
  report_.Warn(checkpoints_->Save(state_, step));
  report_.Saved(step);
}

}  // namespace moonshard
