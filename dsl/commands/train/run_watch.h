// RunWatch: what the command does with the reports of RankWatch: prints long waits, and ends this rank when another one
// has failed.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "dsl/commands/cli/options.h"
#include "dsl/embed/moonshard.h"

namespace moonshard {

class RunWatch {
 public:
  // Reads MOONSHARD_PATIENCE and MOONSHARD_SILENCE (README.md). `verb` must outlive the object. The object does nothing
  // in a run of one rank. In a run of several the process then ignores SIGPIPE.
  explicit RunWatch(const TrainVerb& verb);

  // As RankWatch. `make` runs in the stage `stage`, and its result is returned; an exception of it as in Guard.
  void Enter(std::string stage, bool reported = true) const;
  void Attach(const DeviceMesh& mesh) const;
  void Done() const;
  template <class Make>
  auto In(std::string stage, const Make& make) const {
    Enter(std::move(stage));
    try {
      return make();
    } catch (...) {
      Report();
      throw;
    }
  }

  // Runs `read`, which waits for the device of `mesh`, and returns its result. `what` is reported if that takes long.
  template <class Read>
  auto OnDevice(const DeviceMesh& mesh, const char* what, const Read& read) const {
    const RankWatch::DeviceWait wait(mesh.device().is_cpu() ? nullptr : watch_.get(), what);
    return read();
  }

  // Runs `body` and returns what it returns. An exception of it becomes known to all ranks, and is thrown; if it is the
  // consequence of the failure of another rank, that failure is printed and the process ends with its exit code. The
  // process then ends without destructors: a save in the background would wait for the rank that was lost. After an
  // exception that is thrown, the process ends within ten seconds in any case.
  int Guard(const std::function<int()>& body) const;

 private:
  // Of the exception that is being handled.
  void Report() const;
  void Fail(const std::string& message, int exit_code, bool consequence) const;

  const TrainVerb& verb_;
  std::unique_ptr<RankWatch> watch_;  // null in a run of one rank
  mutable bool failed_ = false;
};

}  // namespace moonshard
