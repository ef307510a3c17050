// Run directory: the directory of a training run on disk. It contains steps, each a sharded checkpoint that is complete
// or absent, and the file `latest`, which names one of the steps:
//
//   run/latest            "step_00000100 5e3b0c6d1f8a9e27\n": the name of the step and the XXH3 hash of the name,
//                         replaced after the step is at its path. A file that is written by hand may omit the hash
//   run/step_00000100/    a sharded checkpoint (manifest.h)
//   run/run.lock          exists while a run has the lock of the directory (run_lock.h)
//   run/step_00000200.partial/   a step under construction, or left by a killed process (storage/staging.h)
//
// Stages before: manifest.h, storage/staging.h, run_lock.h. Used by training_state.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/core/base/result.h"
#include "engine/io/checkpoint/run_lock.h"
#include "engine/io/storage/storage.h"

namespace moonshard {

// A file with such a name exists while ranks check that they see the same directory.
inline constexpr const char* kProbePrefix = "run.probe-";

// Returns "step_00000100" for step 100.
std::string StepDirectoryName(int64_t step);
// Returns the step of a name that StepDirectoryName returns; nullopt for any other name.
std::optional<int64_t> StepOfDirectoryName(const std::string& name);

class RunDirectory {
 public:
  explicit RunDirectory(std::string folder, RunLockTimes times = {}) : folder_(std::move(folder)), times_(times) {}

  const std::string& folder() const { return folder_; }
  std::string PathOf(int64_t step) const { return folder_ + "/" + StepDirectoryName(step); }

  // Returns the complete steps in ascending order.
  std::vector<int64_t> Steps() const;
  // Returns the step that `latest` names, or nullopt if the file does not exist. Errors: kFileUnreadable; kBadManifest:
  // the file does not name a step, or names a step that does not exist.
  Result<std::optional<int64_t>> Latest() const;
  // Returns the last valid step before `step`, or nullopt. A step is valid if every byte is as it was written
  // (CheckSharded, which reads the full step) and the recorded step number is that of the directory's name.
  std::optional<int64_t> LastGoodBefore(int64_t step) const;

  // Records which steps exist before this run writes its first step. This run may replace these steps, but no step that
  // appears later and that another run wrote (MayWrite). Lock calls Know if Know was not called before.
  void Know();
  // Makes the directory, locks it for the lifetime of this object, and removes leftovers of killed processes. Does
  // nothing if this object already has the lock. Errors: kWriteFailed; kRunTaken: another run has the lock;
  // kBadManifest: a directory has the name of a step but no manifest.
  Failure Lock(Storage& storage);
  // Returns kRunTaken if this object must not publish the step: it lost the lock, or the step exists but was neither
  // recorded by Know nor written by this object. Requires Lock.
  Failure MayWrite(int64_t step) const;
  // Records that this object wrote the step.
  void Wrote(int64_t step) { known_->insert(step); }
  // Makes `latest` name the step. Errors: kWriteFailed.
  Failure PointTo(Storage& storage, int64_t step) const;
  // Removes all steps before `step` except the last `keep` - 1; removes none if `keep` is 0. Returns warnings for steps
  // that could not be removed.
  Diagnostics Prune(Storage& storage, int64_t step, int64_t keep) const;

 private:
  std::string folder_;
  RunLockTimes times_;
  std::unique_ptr<RunLock> lock_;
  std::optional<std::set<int64_t>> known_;
};

// Reads all files of a sharded checkpoint and compares them with the hashes of the manifest. Returns kCorruptData for
// each file and each shard of a tensor that does not have the bytes that were written, and the errors of
// ShardedCheckpoint.
Diagnostics CheckSharded(const std::string& folder);

}  // namespace moonshard
