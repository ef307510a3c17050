// StopRequest: whether a signal requested this process to stop: Ctrl-C, or SIGTERM of a scheduler.
#pragma once

#include <array>
#include <csignal>

namespace moonshard {

// During its lifetime SIGINT and SIGTERM are recorded instead of ending the process; a second SIGINT ends it at once,
// as a program that does not catch it ends. One that the process ignores (nohup) stays ignored. One at a time.
class StopRequest {
 public:
  StopRequest();
  ~StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;

  // The signal, or 0.
  static int Asked();

 private:
  std::array<struct sigaction, 2> before_ = {};
};

}  // namespace moonshard
