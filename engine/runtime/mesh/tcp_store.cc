// c10d opens a socket at all addresses; it takes one over that is bound already (masterListenFd), which is how the
// server gets the address. The socket listens from the beginning: two sockets with SO_REUSEADDR may be bound to one
// address as long as neither listens, and it would not be noticed that the port is in use.
//
// c10d's client waits ever longer between two attempts to connect, seconds after a few. Of two connections that a
// process opens before the server starts, one may be seconds behind the other: the watch of the ranks (rank_watch.h)
// would not have come yet when a rank fails right after joining, and its process would wait for a server that has
// ended. So the client waits here until a server accepts connections, and c10d then connects at its first attempt.
#include "engine/runtime/mesh/tcp_store.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace moonshard {
namespace {

using std::chrono::milliseconds;
using StoreClock = std::chrono::steady_clock;

constexpr milliseconds kFirstRetry{20};
constexpr milliseconds kLastRetry{500};
constexpr milliseconds kOneAttempt{3000};  // the longest wait for an answer of one address
constexpr milliseconds kLeastLeft{1000};   // of the time for c10d's own connection, behind a long wait

struct FreeFound {
  void operator()(addrinfo* found) const { freeaddrinfo(found); }
};
using FoundAddresses = std::unique_ptr<addrinfo, FreeFound>;

// The addresses of `host`, with `flags` of getaddrinfo; null where there are none.
FoundAddresses Lookup(const std::string& host, uint16_t port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return nullptr;
  return FoundAddresses(found);
}

// A socket that listens at `host`; -1 where that is a name, no address of this machine, or in use.
int ListenAtHost(const std::string& host, uint16_t port) {
  const FoundAddresses address = Lookup(host, port, AI_NUMERICHOST | AI_NUMERICSERV);
  if (!address) return -1;
  const int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(fd, address->ai_addr, address->ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0) return fd;
  close(fd);
  return -1;
}

// The error of one attempt to connect; 0: a server has accepted.
int TryToConnect(const addrinfo& address, milliseconds wait) {
  const int fd = socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, address.ai_protocol);
  if (fd < 0) return errno;
  int error = connect(fd, address.ai_addr, address.ai_addrlen) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    pollfd ready = {fd, POLLOUT, 0};
    socklen_t size = sizeof(error);
    if (poll(&ready, 1, static_cast<int>(wait.count())) <= 0) {
      error = ETIMEDOUT;
    } else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) {
      error = errno;
    }
  }
  close(fd);
  return error;
}

// Until a server accepts connections at `host`. Throws at `until`.
void AwaitServer(const std::string& host, uint16_t port, milliseconds timeout) {
  const StoreClock::time_point until = StoreClock::now() + timeout;
  milliseconds pause = kFirstRetry;
  for (std::string error;; pause = std::min(2 * pause, kLastRetry)) {
    const FoundAddresses found = Lookup(host, port, 0);
    error = found ? "" : "the name is not known";
    for (const addrinfo* at = found.get(); at != nullptr; at = at->ai_next) {
      const auto left = std::chrono::duration_cast<milliseconds>(until - StoreClock::now());
      const int failed = TryToConnect(*at, std::clamp(left, kFirstRetry, kOneAttempt));
      if (failed == 0) return;
      error = std::generic_category().message(failed);
    }
    if (StoreClock::now() + pause > until) {
      C10_THROW_ERROR(DistNetworkError, "no server of the store at " + host + ":" + std::to_string(port) + " within " +
                                            std::to_string(timeout.count() / 1000) + " s: " + error);
    }
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace

c10::intrusive_ptr<c10d::Store> OpenTcpStore(const Launch& launch, milliseconds timeout) {
  c10d::TCPStoreOptions tcp;
  tcp.port = launch.port;
  tcp.isServer = launch.serves_store;
  tcp.numWorkers = static_cast<size_t>(launch.world_size);
  tcp.waitWorkers = false;  // the groups wait for their own ranks
  tcp.multiTenant = true;   // the mesh, the watch and the embedder's own groups may meet at the same port
  tcp.timeout = timeout;
  if (!launch.serves_store) {
    const StoreClock::time_point begin = StoreClock::now();
    AwaitServer(launch.host, launch.port, timeout);
    tcp.timeout = std::max(std::chrono::duration_cast<milliseconds>(timeout - (StoreClock::now() - begin)),
                           std::min(kLeastLeft, timeout));
    auto store = c10::make_intrusive<c10d::TCPStore>(launch.host, tcp);
    store->setTimeout(timeout);
    return store;
  }
  // Between the two a thread that opens the store, too, would find the port in use, and no server of this process.
  static std::mutex starting;
  const std::lock_guard lock(starting);
  // -1 also where this process serves the store already: c10d then finds that server by its port.
  if (const int fd = ListenAtHost(launch.host, launch.port); fd >= 0) tcp.masterListenFd = fd;
  return c10::make_intrusive<c10d::TCPStore>(launch.host, tcp);
}

}  // namespace moonshard
