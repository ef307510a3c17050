// StopRequest: records that a signal requested this process to stop: Ctrl-C (SIGINT), or SIGTERM or SIGUSR1 of a
// scheduler.
#pragma once

#include <array>
#include <chrono>
#include <csignal>

namespace moonshard {

// While an object exists, the first of these signals ends the process at once, as long as Begin was not called: there
// is nothing to save while ranks join and load. After Begin the first signal is recorded and does not end the process.
// The process then ends at once:
//   - at a second SIGINT, or at another signal that comes a second later or more (a launcher may send one stop twice);
//   - when it made no progress for `grace` after the first signal, unless Heard was called: a step does not end where a
//     peer is gone or hangs. A line on stderr says so.
// Its exit code is 128 plus the number of the signal. A signal that the process ignores (nohup) stays ignored. At most
// one object may exist at a time. Uses the alarm of the process (SIGALRM).
class StopRequest {
 public:
  // `grace`: at least a second.
  explicit StopRequest(std::chrono::seconds grace);
  ~StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;

  static void Begin();
  // A part of the run has ended: a micro-batch, a part of an evaluation.
  static void Progress();
  // The first signal that was recorded, or 0.
  static int Asked();
  // The run is over, and what is left has all the time it needs.
  static void Heard();

 private:
  std::array<struct sigaction, 4> before_ = {};
};

}  // namespace moonshard
