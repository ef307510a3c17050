// Run directory: the steps of a training run on disk, each a sharded checkpoint that is complete or absent, and
// `latest`, which names one of them:
//
//   run/latest            "step_00000100 5e3b0c6d1f8a9e27\n": its name and the name's XXH3, replaced after the step is in
//                         its place. Written by hand the name alone is enough
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
  // The step that `latest` names; nothing where there is no such file. Errors: kFileUnreadable; kBadManifest: it names
  // none, or one that does not exist.
  Result<std::optional<int64_t>> Latest() const;
  // The last step below `step` of which every byte is as it was written (CheckSharded: reads all of it), and that is the
  // step that its name says.
  std::optional<int64_t> LastGoodBefore(int64_t step) const;

  // The steps that are there now are this run's to replace: what it was started from. Lock does it where nobody has.
  void Know();
  // Makes the directory, locks it for this object until it is destroyed, and removes what killed processes left. Does
  // nothing where this object has the lock. Errors: kWriteFailed; kRunTaken where another run has it; kBadManifest: a
  // directory with the name of a step that has no manifest.
  Failure Lock(Storage& storage);
  // Whether this object may put a step in place: it has the lock still, and no step of this number is there that it
  // neither knows nor wrote. Errors: kRunTaken.
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
