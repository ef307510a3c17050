// Run lock: one run writes a run directory at a time, on whichever machines the runs are. It is two locks, because each
// covers cases that the other does not:
//
//   flock on the directory   released when the process ends; works between processes of one machine, and between
//                            machines only if the file system supports it
//   DIR/run.lock             the owner, and a number that the owner increments; a run that sees no change for
//                            `patience` takes the lock over. Clocks of different machines are not compared
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
  // Takes the lock of an existing directory. `storage` is used for the lock file, during the call. Waits at most
  // `patience`, and only for the lock file of a process of another machine, or of this one if the directory has no
  // flock. Errors: kRunTaken, with its owner; kWriteFailed.
  static Result<std::unique_ptr<RunLock>> Take(Storage& storage, const std::string& folder,
                                               const RunLockTimes& times = {});
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;
  // Releases both.
  ~RunLock();

  // kRunTaken if the lock file belongs to another run or is gone: this process was stopped for longer than `patience`,
  // or the file was removed. The directory must not be written to any more then.
  Failure CheckHeld() const;

 private:
  struct Impl;
  explicit RunLock(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace moonshard
