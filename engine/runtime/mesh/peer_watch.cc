// The thread sleeps in poll() on the connections of peers and on a descriptor that wakes it when the list changes. It
// asks for POLLRDHUP alone: the records that arrive on a connection belong to the exchange, and do not wake it. A
// connection that ended with unread records reports its end at once all the same.
//
// Two markers tell of any number of queued collectives whether one of them hangs: the oldest stays where it is until
// the device has passed it, and the newest moves behind each collective. Once the oldest is passed, the newest takes
// its place. So a collective that hangs has a marker behind it. A third is recorded before it takes the place of the
// newest: the call waits while the queue of the device is full, which the thread must not wait for.
#include "engine/runtime/mesh/peer_watch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <utility>

#include "engine/core/base/check.h"
#include "engine/runtime/mesh/device_mesh.h"

namespace moonshard {

void AbortAll(const std::vector<c10::intrusive_ptr<c10d::Backend>>& backends) {
  std::vector<std::thread> aborts;
  for (const auto& backend : backends) {
    aborts.emplace_back([&backend] {
      try {
        backend->abort();
      } catch (const std::exception&) {
        // A communicator that cannot be aborted is left to c10d's own limit of time.
      }
    });
  }
  for (std::thread& abort : aborts) abort.join();
}

PeerWatch::PeerWatch(std::function<std::unique_ptr<Marker>()> make_marker, std::chrono::milliseconds timeout)
    : make_marker_(std::move(make_marker)), timeout_(timeout), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
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
  if (group.backend && !group.given) {
    backends_.push_back(group.backend);
    telling_.push_back(group.backend);
  }
  Wake();
}

void PeerWatch::Queued(const std::string& group, const std::string& label) {
  if (!make_marker_) return;
  const std::lock_guard recording(recording_);
  if (!spare_.marker) spare_.marker = make_marker_();
  spare_.marker->Record();
  spare_.queued = std::chrono::steady_clock::now();
  spare_.group = group;
  spare_.label = label;
  spare_.set = true;
  const std::lock_guard lock(mutex_);
  std::swap(oldest_.set ? newest_ : oldest_, spare_);
}

std::string PeerWatch::LossOfCollective() {
  try {
    if (oldest_.set && oldest_.marker->Passed()) {
      oldest_.set = false;
      std::swap(oldest_, newest_);
    }
  } catch (const std::exception& error) {
    return "the device has failed: " + ErrorText(error);
  }
  if (!oldest_.set || std::chrono::steady_clock::now() - oldest_.queued < timeout_) return "";
  return "a collective of " + oldest_.group + " has not ended within " + std::to_string(timeout_.count()) +
         " ms, at or before: " + oldest_.label;
}

// Of a peer on another machine there is no connection. c10d tells that one of its collectives failed, and aborts them a
// while later.
std::string PeerWatch::LossOfBackend() {
  for (size_t i = 0; i < telling_.size();) {
    try {
      if (telling_[i]->getError() != c10d::ErrorType::SUCCESS) return "c10d has found an error of a collective";
      ++i;
    } catch (const std::exception&) {
      telling_.erase(telling_.begin() + static_cast<ptrdiff_t>(i));  // a backend that does not tell
    }
  }
  return "";
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
  telling_.clear();
  oldest_ = {};
  newest_ = {};
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
    const int pause = make_marker_ ? static_cast<int>(std::clamp<int64_t>(timeout_.count() / 10, 1, 500)) : -1;
    if (poll(fds.data(), fds.size(), pause) < 0) {
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
      }
      if (lost_.empty()) lost_ = LossOfCollective();
      if (lost_.empty()) lost_ = LossOfBackend();
      if (lost_.empty()) continue;
      backends = backends_;
    }
    AbortAll(backends);
    return;
  }
}

}  // namespace moonshard
