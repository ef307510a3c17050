// TrainingCheckpoints: a training run on disk: parameters, buffers, the optimizer's state, the ranks' random
// states and the host's own texts, saved between two steps and loaded on the same or any other mesh.
//
//   TrainingCheckpoints checkpoints = TrainingCheckpoints::Open("run", mesh, {.model_folder = "llama"});
//   TrainingState state{.model = &model.applied(), .optimizer = &optimizer};
//   checkpoints.Claim();                                                   // no other run writes here from here on
//   int64_t step = 0;
//   if (checkpoints.Latest()) step = checkpoints.Load(state).step;         // state.host: as it was saved
//   for (...) { ...; optimizer.step(); state.host["data"] = position; checkpoints.SaveInBackground(state, ++step); }
//   checkpoints.Wait();
//
// On disk, in a directory that all ranks see:
//
//   run/step_00000100/   a sharded checkpoint (checkpoint/manifest.h), complete or absent. Parameters and buffers under
//                        their paths, an optimizer's tensors as "optimizer.exp_avg.<path>", every shard once however
//                        many ranks hold it; moonshard/random.safetensors: the ranks' generators; config.json and the
//                        like of the model directory. The manifest has the rest (training_record.h).
//   run/latest           names the newest, replaced last (checkpoint/run_directory.h)
//
// `moonshard merge run/step_00000100 OUT` gives the model's weights back as a model directory.
//
// A run that is loaded on a mesh of the same axes resumes bit for bit as if it had not stopped. Replicas count once: of
// ranks that should hold the same, the first one's values are saved, by that rank alone (buffers that differ between
// data-parallel ranks, as running statistics do, become the first rank's). Gradients are not saved: save between steps.
//
// One run writes to a directory. It takes it with Claim, or with its first save, and has it until the object is
// destroyed; a step that another run put there meanwhile is never replaced (kRunTaken).
//
// Every function but move construction, move assignment, Wait and folder is collective: all ranks of the mesh call it
// in one
// order. A failure of one rank (its disk is full) is thrown on every rank, as a PlanError that names the rank; the run
// can continue, and earlier steps are unchanged. A rank that does not join within `timeout` is kRankLost on the others;
// after that the object cannot be used.
// Stage before: apply (AppliedPlan between two steps), checkpoint.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Generator.h>

#include "engine/core/base/diagnostic.h"
#include "engine/io/checkpoint/run_directory.h"  // IWYU pragma: export
#include "engine/io/safetensors/weight_recipe.h"
#include "engine/io/storage/storage.h"
#include "engine/runtime/apply/applied_plan.h"
#include "engine/runtime/mesh/device_mesh.h"
#include "engine/train/training_state/optimizer_adapter.h"

namespace moonshard {

// What is saved, and where it is loaded to. Everything pointed to outlives the call (a background save has copied it).
struct TrainingState {
  AppliedPlan* model = nullptr;                  // required
  torch::optim::Optimizer* optimizer = nullptr;  // one that AdapterOf knows; nullptr: none, or `adapter`
  OptimizerAdapter* adapter = nullptr;           // for an optimizer of the host's own
  std::map<std::string, std::string> host = {};  // small texts in UTF-8 by name: scheduler, data position, config.
                                                 // Those of rank 0 are saved; loading replaces all, on every rank
  std::map<std::string, at::Generator> generators = {};  // by name; empty: "cpu", LibTorch's own, and on a GPU "cuda"
};

struct TrainingCheckpointOptions {
  // After a save this many steps are kept: the saved one and the newest with smaller numbers; 0: all. Steps with larger
  // numbers (left when the run was resumed from an earlier step) stay until the run saves them again or passes them.
  int64_t keep = 3;
  // The model directory that the run began from; "": none, or that of the checkpoint that is loaded. Its files besides
  // the tensors (of up to 64 MiB) are read once, by Open, and are in every step; so are its tensors' names and order.
  std::string model_folder = {};
  // Without a model_folder: what its files besides the tensors would be, as config.json; each step has them.
  std::map<std::string, std::string> model_files = {};
  // How the model's tensors are made of those of model_folder where names or forms differ (Program::recipes).
  WeightRecipes recipes = {};
  // The longest wait for another rank to do its part of a save or a load.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  // Whether loading compares every byte that was saved with its hash, each on some rank. false: only shards that a rank
  // reads exactly as they were written are compared (on the same mesh that is all of them), and no others are read for
  // it.
  bool check_all = true;
  Storage* storage = nullptr;  // nullptr: PosixStorage. Outlives the object; used by one thread at a time
  // Receives the message of a failed background save if the object is destroyed before Wait or another save throws the
  // error. Must not throw. Empty: that error is lost.
  std::function<void(const std::string& message)> on_unreported_failure = {};
};

struct LoadedStep {
  int64_t step = 0;
  MeshShape mesh;        // that saved it
  Diagnostics findings;  // warnings and notes: a dtype that was converted, generators that were not saved
};

class TrainingCheckpoints {
 public:
  // Makes no directory yet. Throws kFileUnreadable and the like where the model directory cannot be read.
  static TrainingCheckpoints Open(const std::string& folder, const DeviceMesh& mesh,
                                  const TrainingCheckpointOptions& options = {});
  TrainingCheckpoints(TrainingCheckpoints&&) noexcept;
  TrainingCheckpoints& operator=(TrainingCheckpoints&&) noexcept;
  // Waits for a background save. Call Wait before: only Wait throws the last save's error and returns its warnings. An
  // error that is left goes to on_unreported_failure.
  ~TrainingCheckpoints();

  // Saves the state after `step` steps (at least 0), in place of one with this number. When it returns the step is
  // complete and survives a power failure. Returns warnings: an old step that could not be removed.
  // First waits for a background save; if that failed its error is thrown and nothing is saved: call again.
  // Throws: kWriteFailed; kRunTaken where another run has the directory, or put a step of this number there after Open
  // or Load looked; kNotSupported: an optimizer, or optimizer state, that cannot be saved, a parameter of the optimizer
  // that is not the model's, a call within a step (parameters are gathered); kBadInput: a text that is not UTF-8;
  // kRanksDisagree: ranks that do not call with the same step or whose optimizers have different state; kRankLost.
  Diagnostics Save(const TrainingState& state, int64_t step);
  // The same, but returns when this rank's shards are copied to host memory; they are written by a thread while
  // training goes on. One at a time: it waits for the one before, and throws what went wrong there as Save does.
  void SaveInBackground(const TrainingState& state, int64_t step);
  // Until the background save is done, if there is one. Throws what went wrong in it, and returns its warnings.
  Diagnostics Wait();

  // Makes the directory and takes it for this run, as the first save does. Call it before the first step: a second run
  // in the same directory is then refused at once, not only at its first save, after it has trained for nothing. Throws
  // kRunTaken, kWriteFailed.
  void Claim();

  // The complete steps that are there, smallest first.
  std::vector<int64_t> Steps();
  // The newest complete step whose bytes are all as they were written. Reads that step and every newer one.
  std::optional<int64_t> NewestWhole();
  // The step that `latest` names; nullopt if there is no such file: nothing was saved, or it was removed, which Steps()
  // distinguishes. Waits for a background save. Throws kBadManifest if `latest` does not name a step, or one that is
  // gone.
  std::optional<int64_t> Latest();
  // Waits for a background save; then loads the latest step, or the one with this number, into the state's model,
  // optimizer and generators, and into state.host. The plan and the mesh may differ from those of the save; this
  // rank reads its own shards, and with check_all its share of those that no rank reads in full. A generator takes the
  // state it had on the same rank of the same mesh; on another mesh, by the rule of random_states.h. Options of
  // parameter groups (lr) are the saved ones. Nothing is changed where the checkpoint does not fit: kFileNotFound;
  // kBadManifest, also where the directory holds a different step than its name; kMissingTensor and kTensorMismatch
  // (all of them); kNotSupported: another kind of optimizer, other groups. Where bytes are not what was written
  // (kCorruptData, each file and tensor by name) the model may hold some of them: load another step. The error names
  // the last valid step before it; nothing falls back to it automatically.
  LoadedStep Load(TrainingState& state);
  LoadedStep Load(TrainingState& state, int64_t step);

  const std::string& folder() const;

 private:
  // Waits for a background save, whose warnings Wait still returns.
  void KeepWarnings();

  struct Impl;
  explicit TrainingCheckpoints(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace moonshard
