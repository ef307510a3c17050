// At most one save is in progress. Begin waits for the one before, so saves that are slower than the interval between
// them delay the run instead of taking more and more memory for copies of the state.
// A write that fails is a warning in the middle of a run: a full disk may be freed before the next save, and steps
// already taken are worth more than an early end. Other errors mean that ranks disagree or that the state is wrong, and
// end the run. The last save of a run throws in any case: no later one replaces it.
#include "dsl/commands/train/saves.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "dsl/commands/train/setup.h"

namespace moonshard {
namespace {

// The host's texts in a step.
constexpr const char* kDataText = "data";
constexpr const char* kOptionsText = "options";
// The adapters of the plan, whichever option, file or section they come from.
constexpr const char* kAdapters = "adapters";
// Those of the saved options whose change is a change of the run, besides what the optimizer remembers.
constexpr std::array kComparedOptions = {"dtype", "loss",     "batch",    "lr",          "min_lr",  "warmup",
                                         "clip",  "schedule", "router_z", "decay_steps", kAdapters, "router_balance"};

std::string FlagOf(std::string key) {
  if (key == kAdapters) return key;
  std::ranges::replace(key, '_', '-');
  return "--" + key;
}

// What differs between two JSON values: "rope_parameters.rope_theta", with both values.
void Differences(const std::string& path, const JsonValue& saved, const JsonValue& now,
                 std::vector<Report::Change>& out) {
  if (saved == now) return;
  if (!saved.is_object() || !now.is_object()) {
    out.push_back({path, saved, now});
    return;
  }
  std::set<std::string> keys;
  for (const JsonValue* side : {&saved, &now}) {
    for (std::string& key : side->Keys()) keys.insert(std::move(key));
  }
  const JsonValue none;
  for (const std::string& key : keys) {
    const JsonValue* before = saved.Find(key);
    const JsonValue* after = now.Find(key);
    Differences(path.empty() ? key : path + "." + key, before == nullptr ? none : *before,
                after == nullptr ? none : *after, out);
  }
}

std::string Names(const std::vector<int64_t>& steps) {
  std::string out;
  for (const int64_t step : steps) out += (out.empty() ? "" : ", ") + std::to_string(step);
  return out;
}

// {"active": NAME, "lora NAME": ["rank=8 alpha=16 of 14 modules", ...]}; null without adapters. Sections without a
// module are left out.
JsonValue AdaptersOf(const CompiledPlan& plan) {
  if (plan.adapted.empty()) return {};
  std::map<int32_t, int64_t> modules;
  for (const auto& [path, section] : plan.adapted) ++modules[section];
  JsonValue::Object out;
  for (const auto& [section, count] : modules) {
    const Adapter& adapter = plan.plan->adapters[static_cast<size_t>(section)];
    JsonValue& of = out.try_emplace("lora " + adapter.name, JsonValue::Array()).first->second;
    of.AsArray().emplace_back(SettingsText(adapter) + " of " + std::to_string(count) + " modules");
  }
  out["active"] = plan.active_adapter();
  return out;
}

}  // namespace

Saves::Saves(const TrainVerb& verb, const DeviceMesh& mesh, AppliedPlan& model, const ModelFolder& folder,
             const WeightRecipes& recipes, torch::optim::Optimizer& optimizer, Batches& data, Report& report)
    : verb_(verb),
      mesh_(mesh),
      config_(folder.config),
      data_(data),
      report_(report),
      state_{.model = &model, .optimizer = &optimizer} {
  if (verb.save.empty()) return;
  TrainingCheckpointOptions options;
  options.keep = verb.keep;
  if (!folder.is_program) {
    options.model_folder = verb.model.model;
  } else if (folder.program->config) {
    options.model_files["config.json"] = WriteJson(folder.config.json(), 2) + "\n";
  }
  options.recipes = recipes;
  options.timeout = mesh.timeout();
  checkpoints_.emplace(TrainingCheckpoints::Open(verb.save, mesh, options));
  checkpoints_->Claim();
}

std::optional<int64_t> Saves::Resume() {
  const std::optional<int64_t> step = checkpoints_ ? StepToResume() : std::nullopt;
  if (!step) return std::nullopt;
  CompareConfig(*step);
  Load(*step);
  saved_ = step;
  return saved_;
}

// Steps without `latest` are a run too: a copy or a clean-up lost the file, or a kill came between the two renames of a
// first save.
std::optional<int64_t> Saves::StepToResume() {
  const std::optional<int64_t> latest = checkpoints_->Latest();
  const std::vector<int64_t> steps = latest ? std::vector<int64_t>() : checkpoints_->Steps();
  if (!latest && steps.empty()) return std::nullopt;
  if (!verb_.resume) {
    Diagnostic d = MakeDiagnostic(
        Finding::kBadInput,
        latest ? "the directory already has a run, saved after step " + std::to_string(*latest)
               : "the directory already has a run: steps " + Names(steps) + ", without the file 'latest'");
    d.path = verb_.save;
    d.required = "--resume to resume the run, or another directory";
    throw PlanError({d});
  }
  if (latest) return latest;
  const std::optional<int64_t> whole = checkpoints_->NewestWhole();
  if (!whole) {
    Diagnostic d = MakeDiagnostic(Finding::kCorruptData,
                                  "none of the steps " + Names(steps) +
                                      " is valid: in each, a file is missing, unreadable or differs from its hash, or "
                                      "the manifest has another step number than the name of the directory");
    d.path = verb_.save;
    d.help = "restore the files of a step from a copy, or use another directory";
    throw PlanError({d});
  }
  report_.PrintFindings("the file 'latest' does not exist; the run resumes from step " + std::to_string(*whole) +
                        ", the newest valid step of " + Names(steps));
  return whole;
}

// Weights of one config under another are other numbers without an error: a norm's epsilon or the base of the rotary
// embedding is in no tensor's shape.
void Saves::CompareConfig(int64_t step) const {
  const std::string folder = checkpoints_->folder() + "/" + StepDirectoryName(step);
  Diagnostics found;
  const Result<ModelConfig> saved = ModelConfig::Read(folder);
  std::vector<Report::Change> differences;
  if (saved.ok()) {
    // As text and back, as the step's was written where the model is a program.
    const auto as_written = [](const JsonValue& json) { return ParseJson(WriteJson(json, 0), "").ValueOrThrow(); };
    Differences("", as_written(saved.value().json()), as_written(config_.json()), differences);
  } else if (saved.diagnostics().front().finding != Finding::kFileNotFound) {
    found = saved.diagnostics();
  }
  const bool accepted = std::ranges::count(verb_.accept_changes, "config") > 0;
  for (const Report::Change& change : differences) {
    Diagnostic d = MakeDiagnostic(Finding::kBadInput, "the run was saved with another config.json");
    d.path = change.option;
    d.declared = WriteJson(change.now, 0) + " in '" + config_.file_name() + "'";
    d.required = WriteJson(change.saved, 0) + ", as in '" + folder + "/config.json'";
    d.help = "--accept-changes config resumes with the model's config.json";
    if (accepted) d.severity = Severity::kWarning;
    found.push_back(std::move(d));
  }
  ThrowTogether(mesh_, "compare the config", HasErrors(found) ? found : Diagnostics());
  report_.Warn(found);
}

std::string Saves::Options() const {
  JsonValue options = ParseJson(Describe(verb_), "the options").ValueOrThrow();
  options.AsObject()[kAdapters] = AdaptersOf(state_.model->plan());
  return WriteJson(options, 2);
}

// A step's options of the optimizer come back with its state. The command line's hold, as for everything that can
// change from one part of a run to the next; which differ is in the log.
void Saves::Load(int64_t step) {
  const std::unique_ptr<OptimizerAdapter> optimizer = AdapterOf(*state_.optimizer).ValueOrThrow();
  std::vector<JsonValue::Object> options;
  for (size_t group = 0; group < optimizer->Groups().size(); ++group) options.push_back(optimizer->OptionsOf(group));
  const LoadedStep loaded = checkpoints_->Load(state_, step);
  const Diagnostics data = data_.Seek(state_.host[kDataText], std::ranges::count(verb_.accept_changes, "data") > 0);
  if (HasErrors(data)) throw PlanError(data);

  std::map<std::string, Report::Change> changes;
  const auto compare = [&](const std::string& key, const JsonValue& saved, const JsonValue& now) {
    if (saved != now) changes[key] = {FlagOf(key), saved, now};
  };
  for (size_t group = 0; group < options.size(); ++group) {
    const JsonValue::Object saved = optimizer->OptionsOf(group);
    for (const auto& [key, now] : options[group]) {
      if (key != "lr") compare(key, saved.at(key), now);  // the schedule sets it
    }
    const Diagnostics errors = optimizer->SetOptions(group, options[group]);
    if (HasErrors(errors)) throw PlanError(errors);
  }
  if (const auto other = changes.find("amsgrad"); other != changes.end()) {
    Diagnostic d =
        MakeDiagnostic(Finding::kNotSupported, "the step was saved by AdamW with another value of 'amsgrad'");
    d.path = verb_.save;
    d.declared = WriteJson(other->second.saved, 0);
    d.required = WriteJson(other->second.now, 0);
    throw PlanError({d});
  }
  const Result<JsonValue> saved = ParseJson(state_.host[kOptionsText], "the saved options");
  const bool none = state_.host[kOptionsText].empty();  // of another host
  if (!none && (!saved.ok() || !saved.value().is_object())) {
    Diagnostic d = MakeDiagnostic(Finding::kBadManifest, "the saved options of the run are not a JSON object");
    d.path = verb_.save;
    d.declared = state_.host[kOptionsText];
    throw PlanError({std::move(d)});
  }
  const JsonValue now = ParseJson(Options(), "the options").ValueOrThrow();
  for (const char* key : kComparedOptions) {
    const JsonValue* before = saved.ok() ? saved.value().Find(key) : nullptr;
    const bool unused = std::string(key) == "decay_steps" && verb_.schedule == "constant";
    if (before != nullptr && !unused) compare(key, *before, *now.Find(key));
  }
  std::vector<Report::Change> out;
  for (auto& [key, change] : changes) out.push_back(std::move(change));
  report_.Resumed(loaded.step, loaded.mesh, out);
  report_.Warn(loaded.findings);
  report_.Warn(data);
}

void Saves::Begin(int64_t step) {
  if (!checkpoints_) return;
  Finish();
  state_.host[kDataText] = data_.Position();
  state_.host[kOptionsText] = Options();
  try {
    checkpoints_->SaveInBackground(state_, step);
    saving_ = step;
  } catch (const PlanError& error) {
    WarnOfDisk(error);
  }
}

// Throws `error` unless it is one of the disk alone.
void Saves::WarnOfDisk(const PlanError& error) {
  const auto fatal = [](const Diagnostic& d) { return d.finding != Finding::kWriteFailed; };
  if (std::ranges::any_of(error.diagnostics(), fatal)) throw error;
  report_.Warn(error.diagnostics());
}

void Saves::Finish() {
  if (!saving_) return;
  try {
    report_.Warn(checkpoints_->Wait());
    saved_ = saving_;
    report_.Saved(*saved_);
  } catch (const PlanError& error) {
    WarnOfDisk(error);
  }
  saving_.reset();
}

void Saves::End(int64_t step) {
  if (!checkpoints_) return;
  Finish();
  if (saved_ == step) return;
  state_.host[kDataText] = data_.Position();
  state_.host[kOptionsText] = Options();
  report_.Warn(checkpoints_->Save(state_, step));
  report_.Saved(step);
}

}  // namespace moonshard
