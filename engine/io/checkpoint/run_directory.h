// Run directory: the steps of a training run on disk, each a sharded checkpoint that is complete or absent, and
// `latest`, which names one of them:
//
//   run/latest            "step_00000100 5e3b0c6d1f8a9e27\n": its name and the name's XXH3, replaced after the step is
//                         in its place. Written by hand the name alone is enough
//   run/step_00000100/    manifest.h
//   run/run.lock          while a run writes here (run_lock.h)
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

// "step_00000100"; and back: nothing for any other name.
std::string StepDirectoryName(int64_t step);
std::optional<int64_t> StepOfDirectoryName(const std::string& name);

class RunDirectory {
 public:
  explicit RunDirectory(std::string folder, RunLockTimes times = {}) : folder_(std::move(folder)), times_(times) {}

  const std::string& folder() const { return folder_; }
  std::string PathOf(int64_t step) const { return folder_ + "/" + StepDirectoryName(step); }

  // Complete steps, smallest first.
  std::vector<int64_t> Steps() const;
  // The step that `latest` names; nullopt if there is no such file. Errors: kFileUnreadable; kBadManifest: it does not
  // name a step, or one that does not exist.
  Result<std::optional<int64_t>> Latest() const;
  // The last valid step before `step`: every byte is as it was written (CheckSharded: reads all of it), and the step is
  // that of the directory's name.
  std::optional<int64_t> LastGoodBefore(int64_t step) const;

  // Allows this run to replace the existing steps, from which it was started. Lock calls it if it was not called
  // before.
  void Know();
  // Makes the directory, locks it for the lifetime of this object, and removes leftovers of killed processes. Does
  // nothing if this object has the lock. Errors: kWriteFailed; kRunTaken if another run has it; kBadManifest: a
  // directory with the name of a step that has no manifest.
  Failure Lock(Storage& storage);
  // Whether this object may publish a step: it still has the lock, and there is no step of this number that it neither
  // knows nor wrote. Errors: kRunTaken.
  Failure MayWrite(int64_t step) const;
  // A step that is in its place now is this run's.
  void Wrote(int64_t step) { known_->insert(step); }
  // Lets `latest` name the step.
  Failure PointTo(Storage& storage, int64_t step) const;
  // Removes steps below `step` but the last `keep` - 1; keep 0: none. Returns warnings.
  Diagnostics Prune(Storage& storage, int64_t step, int64_t keep) const;

 private:
  std::string folder_;
  RunLockTimes times_;
  std::unique_ptr<RunLock> lock_;
  std::optional<std::set<int64_t>> known_;
};

// Everything that does not have the bytes that were written, by file and tensor: kCorruptData, and what
// ShardedCheckpoint finds. Reads all of it.
Diagnostics CheckSharded(const std::string& folder);

}  // namespace moonshard
