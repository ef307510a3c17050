// StopRequest: records that a signal requested this process to stop: Ctrl-C (SIGINT), or SIGTERM of a scheduler.
#pragma once

#include <array>
#include <csignal>

namespace moonshard {

// While an object exists, SIGINT and SIGTERM are recorded and do not end the process; a second SIGINT ends it at once,
// with the exit code 130. A signal that the process ignores (nohup) stays ignored. At most one object may exist at a
// time.
class StopRequest {
 public:
  StopRequest();
  ~StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;

  // The first signal that was recorded, or 0.
  static int Asked();

 private:
  std::array<struct sigaction, 2> before_ = {};
};

}  // namespace moonshard
