// Run lock: one run writes a run directory at a time, whichever machines the runs are on. It is two locks, because each
// covers what the other cannot:
//
//   flock on the directory   ends with the process, at once; between processes of one machine, and of several only where
//                            the file system carries it
//   DIR/run.lock             who has it, and a number that its owner counts up; whoever finds a number that does not
//                            change for `patience` takes the lock over. No clock of two machines is compared
//
// Stage after: run_directory.h.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "engine/core/base/result.h"
#include "engine/io/storage/storage.h"

namespace moonshard {

inline constexpr const char* kRunLockFile = "run.lock";

struct RunLockTimes {
  std::chrono::milliseconds renew = std::chrono::seconds(10);     // between two counts
  std::chrono::milliseconds patience = std::chrono::seconds(35);  // without one: a few times `renew`
};

class RunLock {
 public:
  // Takes the lock of a directory that exists. `storage` is used for the lock file, during the call. Waits at most `patience`, and only for the lock file of a process of
  // another machine, or of this one where the directory has no flock. Errors: kRunTaken, who has it; kWriteFailed.
  static Result<std::unique_ptr<RunLock>> Take(Storage& storage, const std::string& folder,
                                               const RunLockTimes& times = {});
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;
  // Releases both.
  ~RunLock();

  // kRunTaken where the lock file is another run's or gone: this process was stopped for longer than `patience`, or
  // somebody removed the file. Then the directory must not be written to any more.
  Failure CheckHeld() const;

 private:
  struct Impl;
  explicit RunLock(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace moonshard
