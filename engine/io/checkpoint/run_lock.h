// Run lock: allows only one run at a time to write a run directory, on any machine. It consists of two locks, because
// each lock covers cases that the other lock does not cover:
//
//   flock on the directory   released when the process ends; works between processes of one machine, and between
//                            machines only if the file system supports it
//   DIR/run.lock             names the owner and has a number that the owner increments; a run that sees no change of
//                            this number for `patience` takes the lock over. Clocks of different machines are not
//                            compared
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
  std::chrono::milliseconds renew = std::chrono::seconds(10);     // between two increments
  std::chrono::milliseconds patience = std::chrono::seconds(35);  // until another run takes over: a few times `renew`
};

class RunLock {
 public:
  // Takes the lock of an existing directory. `storage` is used to create the lock file, and not after the call. Waits
  // at most about `patience`, and only if a process on another machine wrote the lock file or the file system does not
  // support flock. Errors: kRunTaken, with the owner of the lock; kWriteFailed.
  static Result<std::unique_ptr<RunLock>> Take(Storage& storage, const std::string& folder,
                                               const RunLockTimes& times = {});
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;
  // Releases both locks.
  ~RunLock();

  // Returns kRunTaken if the lock file belongs to another run or is gone. This happens if this process was stopped for
  // longer than `patience`, or if the file was removed. After this error, this process must not write to the directory
  // any more.
  Failure CheckHeld() const;

 private:
  struct Impl;
  explicit RunLock(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace moonshard
