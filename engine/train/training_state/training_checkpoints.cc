// A save has two exchanges between ranks. In the first the ranks compare the step and the optimizer's state, and rank 0
// locks the run and opens a staging directory; only when all of that has succeeded does any rank write. Between the two
// every rank writes its file by itself. In the second the ranks report that their files are complete, and rank 0, with
// all reports, writes the manifest, commits the directory and replaces `latest`. A rank that fails in between reports
// its error there, and all of them throw it: no rank believes in a step that another one could not write.
//
// In the background everything after the first exchange runs on a thread. What it writes was copied before the first
// call returned, and its exchange goes through the store and not through a collective, because collectives of training
// run at the same time and in no order with it.
//
// A load has three: all ranks could open and plan the step; all could read it; all could set it. The model is changed
// from the second on, so a step that does not fit any rank changes none.
#include "engine/train/training_state/training_checkpoints.h"

#include <chrono>
#include <exception>
#include <filesystem>
#include <limits>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include <c10/core/GradMode.h>

#include "engine/core/base/check.h"
#include "engine/core/base/hash.h"
#include "engine/core/findings/forms.h"
#include "engine/io/checkpoint/model_form.h"
#include "engine/io/storage/staging.h"
#include "engine/io/storage/storage.h"
#include "engine/runtime/collective/store_group.h"
#include "engine/runtime/sharded_model/buffers.h"
#include "engine/train/training_state/saved_state.h"
#include "engine/train/training_state/step_reader.h"
#include "engine/train/training_state/step_writer.h"

namespace moonshard {
namespace {

// What `work` throws as diagnostics, so that it reaches the other ranks.
template <class Work>
Diagnostics Guarded(const Work& work) {
  try {
    return work();
  } catch (const PlanError& error) {
    return error.diagnostics();
  } catch (const std::exception& error) {
    return {MakeDiagnostic(Finding::kInternal, error.what())};
  }
}

Diagnostics Only(const Diagnostics& found, bool errors) {
  Diagnostics out;
  for (const Diagnostic& d : found) {
    if ((d.severity == Severity::kError) == errors) out.push_back(d);
  }
  return out;
}

bool IsUtf8(const std::string& text) {
  const Result<JsonValue> read_back = ParseJson(JsonQuoted(text), "");
  return read_back.ok() && read_back.value() == JsonValue(text);
}

Diagnostics CheckTexts(const std::map<std::string, std::string>& host) {
  Diagnostics errors;
  for (const auto& [name, text] : host) {
    if (IsUtf8(name) && IsUtf8(text)) continue;
    errors.push_back(
        MakeDiagnostic(Finding::kBadInput, "text " + JsonQuoted(name) + " of TrainingState::host is not UTF-8"));
  }
  return errors;
}

// The longest wait for a file that another machine has written to a shared directory.
constexpr std::chrono::seconds kFileAppears{10};

std::string NewProbeName() {
  std::random_device random;
  return kProbePrefix + HashToText(uint64_t{random()} << 32 | random());
}

Diagnostics FindProbe(const std::string& folder, const std::string& name) {
  const auto until = std::chrono::steady_clock::now() + kFileAppears;
  std::error_code ignored;
  while (!std::filesystem::exists(folder + "/" + name, ignored)) {
    // NFS may remember that a file was missing until its folder is opened.
    for (const std::filesystem::path& opened :
         {std::filesystem::path(folder).parent_path(), std::filesystem::path(folder)})
      std::filesystem::directory_iterator(opened, ignored);
    if (std::chrono::steady_clock::now() > until) {
      Diagnostic d = MakeDiagnostic(Finding::kRanksDisagree,
                                    "the run directory is not the same as on rank 0, or does not exist here");
      d.path = folder;
      d.required = "one directory that the machines of all ranks share, under the path that each rank was given";
      d.help = "mount the shared file system on every machine, or save to another directory";
      return {d};
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return {};
}

Result<OptimizerOf> FindOptimizer(const TrainingState& state) {
  OptimizerOf out;
  out.adapter = state.adapter;
  if (state.adapter || !state.optimizer) return out;
  Result<std::unique_ptr<OptimizerAdapter>> made = AdapterOf(*state.optimizer);
  if (!made.ok()) return made.diagnostics();
  out.own = std::move(made).value();
  out.adapter = out.own.get();
  return out;
}

}  // namespace

struct TrainingCheckpoints::Impl {
  Impl(const std::string& folder, const DeviceMesh& mesh, TrainingCheckpointOptions o)
      : options(std::move(o)),
        run(folder),
        ranks(mesh, "training checkpoints", options.timeout),
        claim(mesh, "run directory", options.timeout + RunLockTimes().patience) {
    Check(!mesh.recording(), "a mesh without peers saves nothing");
    if (!options.storage) own_storage = PosixStorage();
  }
  ~Impl() {
    if (thread.joinable()) thread.join();
    if (!failure || !options.on_unreported_failure) return;
    try {
      std::rethrow_exception(failure);
    } catch (const std::exception& error) {
      options.on_unreported_failure(error.what());
    }
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  Storage& storage() { return options.storage ? *options.storage : *own_storage; }

  // The collective beginning of a save: the ranks agree on what is saved, and rank 0 opens the directory.
  std::unique_ptr<StepJob> Begin(const TrainingState& state, int64_t step, bool copy) {
    auto job = std::make_unique<StepJob>();
    job->step = step;
    job->rank = ranks.rank();
    job->place = run.PathOf(step);
    std::optional<SavedState> saved;
    std::optional<OptimizerOf> optimizer;
    const Diagnostics errors = Guarded([&] {
      Diagnostics found = CheckTexts(state.host);
      Check(state.model != nullptr, "a TrainingState without a model");
      Check(step >= 0, "a step below 0");
      optimizer = FindOptimizer(state).Collect(found);
      if (optimizer) saved = SavedState::Of(*state.model, optimizer->adapter).Collect(found);
      return found;
    });
    const JsonValue mine = JsonValue::Object{{"step", step}, {"memory", saved ? saved->declared() : JsonValue()}};
    const JsonValue begun = ranks.GatherOrFail(
        "begin to save " + StepDirectoryName(step), errors, mine, [&](const std::vector<JsonValue>& all) -> JsonValue {
          std::string probe;
          JsonValue settled = Settle(state, all, *job, probe);
          return JsonValue::Object{{"settled", std::move(settled)}, {"probe", std::move(probe)}};
        });
    const JsonValue& settled = *begun.Find("settled");
    job->probe = begun.Find("probe")->AsString();
    // An error from here on is kept until the second exchange: thrown now it would leave the other ranks waiting there.
    begin_errors = Guarded([&] {
      LayOutJob(state, *saved, settled, copy, *job);
      return Diagnostics();
    });
    if (begin_errors.empty() && !job->probe.empty()) begin_errors = FindProbe(run.folder(), job->probe);
    return job;
  }

  // On rank 0. `probe`: a file that the other ranks must see, if the directory is not claimed yet.
  JsonValue Settle(const TrainingState& state, const std::vector<JsonValue>& all, StepJob& job, std::string& probe) {
    std::vector<JsonValue> memories;
    for (size_t rank = 0; rank < all.size(); ++rank) {
      memories.push_back(*all[rank].Find("memory"));
      if (*all[rank].Find("step") == JsonValue(job.step)) continue;
      Diagnostic d = MakeDiagnostic(Finding::kRanksDisagree, "the ranks save different steps");
      d.declared = "rank 0: " + std::to_string(job.step) + "; rank " + std::to_string(rank) + ": " +
                   WriteJson(*all[rank].Find("step"), 0);
      throw PlanError({d});
    }
    JsonValue settled = SavedState::Settle(*state.model, memories);
    if (Failure failed = run.Lock(storage())) throw PlanError(ByFirst({*failed}));
    if (Failure taken = run.MayWrite(job.step)) throw PlanError(ByFirst({*taken}));
    if (!claimed && ranks.world_size() > 1) probe = WriteProbe();
    StagingOptions options_staging;
    options_staging.storage = &storage();
    options_staging.replace = true;
    Diagnostics found;
    job.staging = StagingDirectory::Open(job.place, options_staging).Collect(found);
    if (job.staging) return settled;
    StagingDirectory::RemovePartial(job.place, storage());
    RemoveProbe(probe);
    throw PlanError(ByFirst(std::move(found)));
  }

  // On rank 0. Returns the name of the file.
  std::string WriteProbe() {
    std::string name = NewProbeName();
    if (Failure failed = ReplaceFile(storage(), run.folder() + "/" + name, name)) throw PlanError(ByFirst({*failed}));
    return name;
  }
  void RemoveProbe(const std::string& name) {
    if (!name.empty()) (void)storage().RemoveAll(run.folder() + "/" + name);
  }

  void LayOutJob(const TrainingState& state, const SavedState& saved, const JsonValue& settled, bool copy,
                 StepJob& job) {
    const c10::AutoGradMode no_grad(false);
    const AppliedPlan& model = *state.model;
    // Collective, so before anything that could fail on this rank alone.
    const std::map<size_t, at::Tensor> buffers = SettledBuffers(model);
    SavedState::Tensors tensors = saved.TensorsOf(settled);
    for (const auto& [i, value] : buffers) tensors.shards[i] = value;
    job.laid_out = LayOut(tensors.placed, model.plan().mesh, Replicas::kFirst).ValueOrThrow();
    Manifest& manifest = job.laid_out.manifest;
    manifest.plan = model.plan().plan->name;
    manifest.plan_hash = model.plan().Hash();
    job.shards.resize(tensors.shards.size());
    if (const std::optional<size_t> file = FileToWrite(manifest, job.rank)) {
      for (size_t i = 0; i < tensors.shards.size(); ++i) {
        const uint32_t t = job.laid_out.order[i];
        if (!manifest.LayoutOf(manifest.tensors[t]).shards[*file]) continue;
        at::Tensor& shard = tensors.shards[i];
        // A background save copies to the CPU, of the shards that this rank writes and of no others; the next step of
        // training writes into the parameters while the thread runs.
        job.shards[t] = copy ? shard.contiguous().to(shard.options().device(c10::kCPU), false, /*copy=*/true) : shard;
      }
    }
    for (auto& [name, generator] : GeneratorsOf(state)) {
      at::Generator of = generator;
      const std::lock_guard lock(of.mutex());
      const at::Tensor bytes = of.get_state();
      job.generators[name] = {static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes()};
    }
    for (const LiveParameter& parameter : model.parameters()) {
      if (model.plan().LayoutsOf(parameter.ref.module).factors) continue;
      job.form_tensors.push_back({parameter.path, parameter.aliases, parameter.is_buffer});
      if (parameter.aliases.empty()) continue;
      manifest.ties.push_back({parameter.path});
      manifest.ties.back().insert(manifest.ties.back().end(), parameter.aliases.begin(), parameter.aliases.end());
    }
    job.adapter = AdapterFilesOf(model.plan());
    job.record.step = job.step;
    job.record.host = state.host;
    job.record.optimizer = SavedState::RecordOf(model, settled);
    job.form = form;
    job.keep = options.keep;
  }

  // Errors of the disk of rank 0.
  Diagnostics ByFirst(Diagnostics found) const {
    for (Diagnostic& d : found) {
      if (ranks.world_size() > 1) d.message = "rank 0: " + d.message;
    }
    return found;
  }

  // The rest, on whichever thread: every rank writes, rank 0 completes. Returns warnings; throws PlanError.
  Diagnostics Complete(StepJob& job, Diagnostics errors) {
    if (errors.empty()) errors = Guarded([&] { return WriteRankPart(storage(), job); });
    try {
      const JsonValue completed = ranks.GatherOrFail(
          "save " + StepDirectoryName(job.step), errors, nullptr,
          [&](const std::vector<JsonValue>&) {
            RemoveProbe(job.probe);
            const Diagnostics found = CompleteStep(storage(), run, job);
            if (HasErrors(found)) throw PlanError(ByFirst(found));
            return ToJson(found);
          },
          [&](Diagnostics&) { RemoveProbe(job.probe); });
      claimed = true;
      return DiagnosticsOfRank(completed);
    } catch (const PlanError& error) {
      // Where a rank is lost, another one may still be writing: the next run removes it.
      if (error.diagnostics().front().finding != Finding::kRankLost) AbandonStep(storage(), job);
      throw;
    }
  }

  Diagnostics Wait() {
    if (thread.joinable()) thread.join();
    if (failure) std::rethrow_exception(std::exchange(failure, nullptr));
    return std::exchange(warnings, {});
  }

  LoadedStep Load(TrainingState& state, int64_t step) {
    Check(state.model != nullptr, "a TrainingState without a model");
    std::optional<OptimizerOf> optimizer;
    std::optional<StepReader> reader;
    Diagnostics found;
    std::shared_ptr<const ModelForm> its_form;
    Diagnostics errors = Guarded([&] {
      found = CheckBetweenSteps(*state.model);
      optimizer = FindOptimizer(state).Collect(found);
      if (!optimizer) return found;
      reader.emplace(state, optimizer->adapter);
      for (Diagnostic& d : reader->Open(run.PathOf(step), step)) found.push_back(std::move(d));
      if (!HasErrors(found) && ranks.rank() == 0) {
        std::optional<ModelForm> read = FormOfSharded(reader->folder(), reader->manifest()).Collect(found);
        if (read) its_form = std::make_shared<const ModelForm>(std::move(*read));
      }
      return found;
    });
    const auto name_good = [&](Diagnostics& all) { NameLastGood(step, all); };
    const auto nothing = [](const std::vector<JsonValue>&) { return JsonValue(); };
    ranks.GatherOrFail("load " + StepDirectoryName(step), Only(errors, true), nullptr, nothing, name_good);
    errors = Guarded([&] { return reader->Read(options.check_all); });
    ranks.GatherOrFail("read " + StepDirectoryName(step), Only(errors, true), nullptr, nothing, name_good);
    errors = Guarded([&] { return reader->Finish(state); });
    ranks.GatherOrFail("resume " + StepDirectoryName(step), Only(errors, true), nullptr, nothing);
    for (Diagnostic& d : errors) found.push_back(std::move(d));
    if (its_form && options.model_folder.empty()) form = its_form;
    if (ranks.rank() == 0) run.Know();  // what is there now, this run goes on from
    return {step, reader->manifest().mesh, Only(found, false)};
  }

  // On rank 0: where a step is damaged, which one before it is not. That reads every byte of the steps before, from the
  // last one back, until one is intact: only after a load has failed, where any shorter check might name another
  // damaged step.
  void NameLastGood(int64_t step, Diagnostics& errors) const {
    for (Diagnostic& d : errors) {
      const bool damaged = d.finding == Finding::kCorruptData || d.finding == Finding::kBadManifest ||
                           d.finding == Finding::kFileNotFound || d.finding == Finding::kFileUnreadable ||
                           d.finding == Finding::kBadJson;
      if (!damaged) continue;
      const std::optional<int64_t> good = run.LastGoodBefore(step);
      d.help = good ? "the last valid earlier step is " + std::to_string(*good) + " ('" + run.PathOf(*good) +
                          "'): load step " + std::to_string(*good) +
                          " by its number, or write the name of its directory to the file 'latest'"
                    : "there is no valid earlier step in '" + run.folder() + "'";
      return;
    }
  }

  TrainingCheckpointOptions options;
  std::unique_ptr<Storage> own_storage;
  RunDirectory run;
  StoreGroup ranks;
  StoreGroup claim;  // rank 0 may wait for the lock of a run on another machine, the others for rank 0
  std::shared_ptr<const ModelForm> form = std::make_shared<const ModelForm>();
  bool claimed = false;      // all ranks have seen the directory; of the thread that saves, until it is joined
  Diagnostics begin_errors;  // of this rank, between agreeing on a save and writing it
  std::thread thread;
  std::exception_ptr failure;  // of the background save
  Diagnostics warnings;
};

TrainingCheckpoints::TrainingCheckpoints(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TrainingCheckpoints::TrainingCheckpoints(TrainingCheckpoints&&) noexcept = default;
TrainingCheckpoints& TrainingCheckpoints::operator=(TrainingCheckpoints&&) noexcept = default;
TrainingCheckpoints::~TrainingCheckpoints() = default;

TrainingCheckpoints TrainingCheckpoints::Open(const std::string& folder, const DeviceMesh& mesh,
                                              const TrainingCheckpointOptions& options) {
  auto impl = std::make_unique<Impl>(folder, mesh, options);
  Diagnostics found;
  if (impl->ranks.rank() == 0 && !options.model_folder.empty()) {
    // Steps within the model directory would be files of the model.
    if (Failure nested = RefuseNested(options.model_folder, folder)) found.push_back(std::move(*nested));
    std::optional<ModelForm> form = FormOfModel(options.model_folder, options.recipes).Collect(found);
    if (form) impl->form = std::make_shared<const ModelForm>(std::move(*form));
  }
  if (options.model_folder.empty() && !options.model_files.empty()) {
    ModelForm form;
    form.kept = options.model_files;
    impl->form = std::make_shared<const ModelForm>(std::move(form));
  }
  if (impl->ranks.rank() == 0) impl->run.Know();
  impl->ranks.GatherOrFail("open '" + folder + "'", Only(found, true), nullptr,
                           [](const std::vector<JsonValue>&) { return JsonValue(); });
  impl->warnings = Only(found, false);
  return TrainingCheckpoints(std::move(impl));
}

Diagnostics TrainingCheckpoints::Save(const TrainingState& state, int64_t step) {
  Diagnostics warnings = Wait();
  const std::unique_ptr<StepJob> job = impl_->Begin(state, step, /*copy=*/false);
  for (Diagnostic& d : impl_->Complete(*job, std::exchange(impl_->begin_errors, {}))) warnings.push_back(std::move(d));
  return warnings;
}

void TrainingCheckpoints::SaveInBackground(const TrainingState& state, int64_t step) {
  Diagnostics warnings = Wait();
  std::unique_ptr<StepJob> job = impl_->Begin(state, step, /*copy=*/true);
  Impl* const impl = impl_.get();
  impl->warnings = std::move(warnings);
  impl->thread = std::thread([impl, job = std::move(job), errors = std::exchange(impl->begin_errors, {})] {
    try {
      for (Diagnostic& d : impl->Complete(*job, errors)) impl->warnings.push_back(std::move(d));
    } catch (...) {
      impl->failure = std::current_exception();
    }
  });
}

Diagnostics TrainingCheckpoints::Wait() { return impl_->Wait(); }

void TrainingCheckpoints::Claim() {
  KeepWarnings();
  StoreGroup& claim = impl_->claim;
  const JsonValue probe =
      claim.GatherAndBroadcast("claim the run directory", nullptr, [&](const std::vector<JsonValue>&) -> JsonValue {
        if (Failure failed = impl_->run.Lock(impl_->storage())) throw PlanError(impl_->ByFirst({*failed}));
        if (claim.world_size() == 1) return nullptr;
        return impl_->WriteProbe();
      });
  if (claim.world_size() == 1) {
    impl_->claimed = true;
    return;
  }
  // On rank 0, which then answers.
  const auto remove = [&](Diagnostics&) { impl_->RemoveProbe(probe.AsString()); };
  const auto combine = [&](const std::vector<JsonValue>&) {
    Diagnostics none;
    remove(none);
    return JsonValue();
  };
  claim.GatherOrFail("find the run directory", FindProbe(folder(), probe.AsString()), nullptr, combine, remove);
  impl_->claimed = true;
}

std::vector<int64_t> TrainingCheckpoints::Steps() {
  KeepWarnings();
  const JsonValue steps =
      impl_->ranks.GatherAndBroadcast("find the steps", nullptr, [&](const std::vector<JsonValue>&) -> JsonValue {
        const std::vector<int64_t> found = impl_->run.Steps();
        return JsonValue::Array(found.begin(), found.end());
      });
  std::vector<int64_t> out;
  for (const JsonValue& step : steps.AsArray()) out.push_back(step.AsInt());
  return out;
}

std::optional<int64_t> TrainingCheckpoints::NewestWhole() {
  KeepWarnings();
  const JsonValue newest =
      impl_->ranks.GatherAndBroadcast("find the newest complete step", nullptr, [&](const std::vector<JsonValue>&) {
        const std::optional<int64_t> step = impl_->run.LastGoodBefore(std::numeric_limits<int64_t>::max());
        return step ? JsonValue(*step) : JsonValue();
      });
  if (newest.is_null()) return std::nullopt;
  return newest.AsInt();
}

void TrainingCheckpoints::KeepWarnings() {
  Diagnostics warnings = Wait();
  impl_->warnings = std::move(warnings);
}

std::optional<int64_t> TrainingCheckpoints::Latest() {
  KeepWarnings();
  const JsonValue latest =
      impl_->ranks.GatherAndBroadcast("find the latest step", nullptr, [&](const std::vector<JsonValue>&) -> JsonValue {
        const std::optional<int64_t> step = impl_->run.Latest().ValueOrThrow();
        return step ? JsonValue(*step) : JsonValue();
      });
  if (latest.is_null()) return std::nullopt;
  return latest.AsInt();
}

LoadedStep TrainingCheckpoints::Load(TrainingState& state) {
  const std::optional<int64_t> latest = Latest();
  if (latest) return impl_->Load(state, *latest);
  Diagnostic d =
      MakeDiagnostic(Finding::kFileNotFound, "'" + folder() + "' has no file 'latest', which names the step to load");
  d.path = folder();
  const std::vector<int64_t> steps = Steps();
  d.help = steps.empty() ? "the directory has no complete step; save one, or load from another directory"
                         : "the newest complete step is " + std::to_string(steps.back()) + ": load step " +
                               std::to_string(steps.back()) + " by its number, or write the name of its directory ('" +
                               StepDirectoryName(steps.back()) + "') to the file 'latest'";
  throw PlanError({d});
}

LoadedStep TrainingCheckpoints::Load(TrainingState& state, int64_t step) {
  Diagnostics warnings = Wait();
  impl_->warnings = std::move(warnings);
  return impl_->Load(state, step);
}

const std::string& TrainingCheckpoints::folder() const { return impl_->run.folder(); }

}  // namespace moonshard
