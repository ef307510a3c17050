#include "tests/support/free_port.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <random>
#include <stdexcept>

namespace moonshard::test {
namespace {

// Below them are well-known services, above them the ports that Linux gives away. A SLURM job whose number is one of
// these meets at that very port (engine/runtime/mesh/launch.cc).
constexpr int kFirst = 15000;
constexpr int kLast = 29999;
constexpr int kAttempts = 1000;

bool IsFree(uint16_t port) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  address.sin_port = htons(port);
  const bool bound = bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  close(listener);
  return bound;
}

}  // namespace

std::string FreePort() {
  std::random_device random;
  std::uniform_int_distribution<int> ports(kFirst, kLast);
  for (int i = 0; i < kAttempts; ++i) {
    const int port = ports(random);
    if (IsFree(static_cast<uint16_t>(port))) return std::to_string(port);
  }
  throw std::runtime_error("no port is free");
}

}  // namespace moonshard::test
