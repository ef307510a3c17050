#include "engine/runtime/mesh/gloo.h"

#include <cstdlib>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace moonshard {

// Two timeouts: connecting may take long, since ranks start at different times, while a collective that waits as long
// means that a peer hangs. Gloo uses the timeout of its options for connecting, and the one that is set afterwards for
// collectives.
c10::intrusive_ptr<c10d::Backend> MakeGlooGroup(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                const std::string& name, const std::string& host,
                                                std::chrono::milliseconds join, std::chrono::milliseconds timeout) {
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
