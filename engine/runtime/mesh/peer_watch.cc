// The thread sleeps in poll() on the connections of peers and on a descriptor that wakes it when the list changes. It
// asks for POLLRDHUP alone: the records that arrive on a connection belong to the exchange, and do not wake it. A
// connection that ended with unread records reports its end at once all the same.
#include "engine/runtime/mesh/peer_watch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <exception>
#include <utility>

#include "engine/core/base/check.h"

namespace moonshard {

PeerWatch::PeerWatch() : wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  Check(wake_ >= 0, "cannot make an eventfd");
  thread_ = std::thread([this] { Watch(); });
}

PeerWatch::~PeerWatch() {
  Stop();
  close(wake_);
}

void PeerWatch::Wake() const {
  const uint64_t one = 1;
  // A write that fails finds the counter at its limit, which wakes the thread as well.
  [[maybe_unused]] const ssize_t written = write(wake_, &one, sizeof(one));
}

void PeerWatch::Add(const MeshGroup& group) {
  const std::lock_guard lock(mutex_);
  const std::vector<int> connections = group.exchange ? group.exchange->Connections() : std::vector<int>{};
  for (size_t i = 0; i < connections.size(); ++i) {
    if (connections[i] >= 0) peers_.push_back({connections[i], group.ranks[i], group.name, group.exchange});
  }
  if (group.backend && !group.given) backends_.push_back(group.backend);
  Wake();
}

void PeerWatch::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  Wake();
  if (thread_.joinable()) thread_.join();
  const std::lock_guard lock(mutex_);
  peers_.clear();
  backends_.clear();
}

std::string PeerWatch::lost() const {
  const std::lock_guard lock(mutex_);
  return lost_;
}

// lost_ is set before the abort: a host that the abort releases finds it.
void PeerWatch::Watch() {
  while (true) {
    std::vector<pollfd> fds = {{wake_, POLLIN, 0}};
    std::vector<Peer> peers;
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
      peers = peers_;
    }
    for (const Peer& peer : peers) fds.push_back({peer.connection, POLLRDHUP, 0});
    if (poll(fds.data(), fds.size(), -1) < 0) {
      if (errno == EINTR) continue;
      return;
    }
    uint64_t changes = 0;
    [[maybe_unused]] const ssize_t read_bytes = read(wake_, &changes, sizeof(changes));
    std::vector<c10::intrusive_ptr<c10d::Backend>> backends;
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
      for (size_t i = 0; i < peers.size() && lost_.empty(); ++i) {
        if (fds[i + 1].revents == 0) continue;
        lost_ = "the connection of rank " + std::to_string(peers[i].rank) + " (in " + peers[i].group + ") has ended";
        backends = backends_;
      }
      if (lost_.empty()) continue;
    }
    for (const auto& backend : backends) {
      try {
        backend->abort();
      } catch (const std::exception&) {
        // A communicator that cannot be aborted is left to c10d's own limit of time.
      }
    }
    return;
  }
}

}  // namespace moonshard
