// TrainingCheckpoints: saves a training run between two steps and loads it on the same or any other mesh: parameters,
// buffers, optimizer state, the random states of the ranks and texts of the application.
//
//   TrainingCheckpoints checkpoints = TrainingCheckpoints::Open("run", mesh, {.model_folder = "llama"});
//   TrainingState state{.model = &model.applied(), .optimizer = &optimizer};
//   checkpoints.Claim();                                                   // from now on no other run can write here
//   int64_t step = 0;
//   if (checkpoints.Latest()) step = checkpoints.Load(state).step;         // state.host: as it was saved
//   for (...) { ...; optimizer.step(); state.host["data"] = position; checkpoints.SaveInBackground(state, ++step); }
//   checkpoints.Wait();
//
// On disk, in a directory that all ranks share:
//
//   run/step_00000100/   a sharded checkpoint (checkpoint/manifest.h), complete or absent: parameters and buffers under
//                        their paths, the optimizer's tensors as "optimizer.exp_avg.<path>", each shard once even
//                        if several ranks hold it; moonshard/random.safetensors with the generators of the ranks;
//                        config.json and the other files of the model directory. The manifest has the other state
//                        (training_record.h).
//   run/latest           names the newest step; a save replaces this file last (checkpoint/run_directory.h)
//
// `moonshard merge run/step_00000100 OUT` writes the weights as a model directory.
//
// A run that is loaded on a mesh with the same axes resumes with bit-identical results, but for buffers that ranks
// compute apart. Replicas are saved once, parameters with the values of the first rank that holds them, buffers with
// those of FullState: where they differ between ranks, as the running statistics of a BatchNorm do under data
// parallelism, the plan's rule for buffers applies (sharded_model/buffers.h), and after a load every rank has the saved
// value. Gradients are not saved: save between steps.
//
// Only one run writes to a run directory. Claim or the first save locks the directory until the object is destroyed. A
// step that another run wrote in the meantime is never replaced (kRunTaken).
//
// Every function except move construction, move assignment, Wait and folder is collective: all ranks of the mesh call
// these functions in the same order. A failure of one rank (its disk is full) is thrown on every rank, as a PlanError
// that names the rank; the run can continue, and earlier steps are unchanged. If a rank does not call the function
// within `timeout`, the other ranks throw kRankLost; after that, the object cannot be used.
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

// The state that is saved or loaded. The objects that TrainingState points to must outlive the call (SaveInBackground
// copies them before it returns).
struct TrainingState {
  AppliedPlan* model = nullptr;                  // required
  torch::optim::Optimizer* optimizer = nullptr;  // supported by AdapterOf; nullptr: none, or `adapter` is set
  OptimizerAdapter* adapter = nullptr;           // for any other optimizer
  std::map<std::string, std::string> host = {};  // small UTF-8 texts by name: scheduler, data position, config. A save
                                                 // stores the texts of rank 0; a load sets all texts on every rank
  std::map<std::string, at::Generator> generators = {};  // by name; empty: LibTorch's "cpu", on a GPU also "cuda"
};

struct TrainingCheckpointOptions {
  // The number of steps that a save keeps: the saved step and the newest steps with smaller numbers; 0: all. Steps with
  // larger numbers (which exist if the run resumed from an earlier step) stay until the run saves these numbers again
  // or passes them.
  int64_t keep = 3;
  // The model directory with which the run started; "": no model directory, or that of the loaded checkpoint. Open
  // reads the files of the directory other than the safetensors files (each up to 64 MiB), and every step contains
  // these files. `moonshard merge` writes the tensors of a step under the names and in the order of this directory.
  std::string model_folder = {};
  // Without model_folder: files such as config.json that every step contains, by name, with their contents.
  std::map<std::string, std::string> model_files = {};
  // How the model's tensors are computed from those of model_folder if names or shapes differ (Program::recipes).
  WeightRecipes recipes = {};
  // The longest wait for another rank in a save or a load.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  // Whether a load checks the hash of every saved shard, each on one of the ranks. false: a load checks only the shards
  // that a rank reads exactly as they were written (on the same mesh these are all shards).
  bool check_all = true;
  Storage* storage = nullptr;  // nullptr: PosixStorage. Must outlive the object; used by one thread at a time
  // Receives the message of a failed background save if the object is destroyed before Wait or another save throws the
  // error. Must not throw. Empty: the error is lost.
  std::function<void(const std::string& message)> on_unreported_failure = {};
};

struct LoadedStep {
  int64_t step = 0;
  MeshShape mesh;        // the mesh of the save
  Diagnostics findings;  // warnings and notes: a dtype that was converted, generators that were not saved
};

class TrainingCheckpoints {
 public:
  // Opens a run directory; does not create the directory. Throws kFileUnreadable and similar errors if the model
  // directory cannot be read.
  static TrainingCheckpoints Open(const std::string& folder, const DeviceMesh& mesh,
                                  const TrainingCheckpointOptions& options = {});
  TrainingCheckpoints(TrainingCheckpoints&&) noexcept;
  TrainingCheckpoints& operator=(TrainingCheckpoints&&) noexcept;
  // Waits for a background save. Call Wait before the destructor runs, because only Wait throws the error of the last
  // save and returns the warnings of the last save. on_unreported_failure receives an error that was not thrown.
  ~TrainingCheckpoints();

  // Saves the state after `step` steps (at least 0); replaces a step that has this number. When Save returns, the step
  // is complete and survives a power failure. Returns warnings, as for an old step that could not be removed. First
  // waits for a background save; if that save failed, throws its error and saves nothing: call Save again. Throws:
  // kWriteFailed; kRunTaken if another run has locked the directory, or has written a step of this number since Open or
  // Load; kNotSupported: an optimizer, or optimizer state, that cannot be saved, an optimizer parameter that is not a
  // parameter of the model, a call within a step (parameters are gathered); kBadInput: a text that is not UTF-8;
  // kRanksDisagree: ranks that save different steps, whose optimizers have different state, or that have different
  // values of a buffer which the plan refuses (buffers.h); kRankLost.
  Diagnostics Save(const TrainingState& state, int64_t step);
  // As Save, but returns when this rank's shards are copied to CPU memory; a thread writes the copies while training
  // continues. Only one background save runs at a time: the call waits for the previous save and throws its error, as
  // Save does.
  void SaveInBackground(const TrainingState& state, int64_t step);
  // Waits for the background save, if there is one. Throws the error or returns the warnings of this save.
  Diagnostics Wait();

  // Creates the run directory and locks it for this run. Every rank then looks for a file that rank 0 has just written
  // there. The first save does the same, unless the program did. Call it before the first step, so that a second run in
  // the same directory, or a machine with another directory, fails before it trains and not at its first save. Throws
  // kRunTaken, kWriteFailed; kRanksDisagree with the ranks that do not see the file: their machine has another
  // directory under this path, or none.
  void Claim();

  // Returns the numbers of the complete steps, smallest first.
  std::vector<int64_t> Steps();
  // Returns the newest complete step whose bytes all match their hashes; nullopt if no step does. Reads this step and
  // every newer step.
  std::optional<int64_t> NewestWhole();
  // Returns the step that `latest` names; nullopt if the file `latest` does not exist, because no step was saved or the
  // file was removed (Steps() distinguishes the two cases). Waits for a background save. Throws kBadManifest if
  // `latest` does not name a step, or names a step that does not exist.
  std::optional<int64_t> Latest();
  // Waits for a background save; then loads the latest step, or step `step`, into the model, the optimizer, the
  // generators and the host texts of the state. The plan and the mesh may differ from those of the save: this rank
  // reads its own shards and, with check_all, its share of the stored shards that no rank reads exactly as they were
  // written. On a mesh with the same axes a generator resumes from the state of the same rank; on another mesh
  // random_states.h has the rules. The options of the parameter groups (lr) are set to the saved options. If the
  // checkpoint does not fit, nothing is changed: kFileNotFound; kBadManifest, also if the directory holds a different
  // step than its name states; kMissingTensor and kTensorMismatch (for all such tensors); kNotSupported: another kind
  // of optimizer, or other parameter groups. If bytes differ from those that were written (kCorruptData, with each file
  // and tensor), the model may have some of these bytes: load another step. The error names the last valid earlier
  // step; Load does not load that step automatically.
  LoadedStep Load(TrainingState& state);
  LoadedStep Load(TrainingState& state, int64_t step);

  const std::string& folder() const;

 private:
  // Waits for a background save and keeps its warnings for the next call of Wait.
  void KeepWarnings();

  struct Impl;
  explicit TrainingCheckpoints(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace moonshard
