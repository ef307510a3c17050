#include "engine/runtime/mesh/gloo.h"

#include <sched.h>

#include <cstdlib>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace moonshard {

namespace {

// While it lives, threads that the calling one starts are scheduled as SCHED_BATCH: one that wakes up takes no
// processor from a thread that runs. Gloo's thread for events skips a pair of ranks whose lock another thread
// holds, and looks again at once. Woken by a peer's message it would run in the place of that holder where there
// are fewer processors than threads, and look some 10,000 times until the holder runs again: more than half of the
// time of small collectives.
class NewThreadsWaitTheirTurn {
 public:
  NewThreadsWaitTheirTurn() : changed_(sched_getscheduler(0) == SCHED_OTHER && Set(SCHED_BATCH)) {}
  ~NewThreadsWaitTheirTurn() {
    if (changed_) Set(SCHED_OTHER);
  }
  NewThreadsWaitTheirTurn(const NewThreadsWaitTheirTurn&) = delete;
  NewThreadsWaitTheirTurn& operator=(const NewThreadsWaitTheirTurn&) = delete;

 private:
  static bool Set(int policy) {
    const sched_param priority{};  // neither policy has one
    return sched_setscheduler(0, policy, &priority) == 0;
  }
  bool changed_;
};

}  // namespace

// Two timeouts: connecting may take long, since ranks start at different times, while a collective that waits as long
// means that a peer hangs. Gloo uses the timeout of its options for connecting, and the one that is set afterwards for
// collectives.
c10::intrusive_ptr<c10d::Backend> MakeGlooGroup(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                const std::string& name, const std::string& host,
                                                std::chrono::milliseconds join, std::chrono::milliseconds timeout) {
  const NewThreadsWaitTheirTurn turn;
  auto options = c10d::ProcessGroupGloo::Options::create(join);
  options->group_name = name;
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  if (interface != nullptr && *interface != '\0') {
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface(interface));
  } else if (!host.empty()) {
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(host));
  } else {
    options->devices.push_back(c10d::ProcessGroupGloo::createDefaultDevice());
  }
  auto group = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
  group->setTimeout(timeout);
  return group;
}

}  // namespace moonshard
