// An exchange between processes of one machine, over Unix sockets of the kind that keeps records apart
// (SOCK_SEQPACKET).
// Each pair of ranks has one socket. Every rank listens first, under an abstract name that the kernel chooses and that
// ends with the process, and then publishes the name in the store; a rank connects to all ranks below it and accepts
// all ranks above it. A connect to a listening socket completes without the peer's help, so no order of the ranks can
// deadlock. Names can be guessed by other users of the machine, therefore connections of another user are dropped.
// Start() sends to all and returns: a record is small and waits in the receiver's socket. Finish() reads one record
// from each peer. Records of one peer arrive in order, so exchanges that were started before and not finished are read
// and kept. A record of another length means that the peers are at different places of the program.
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <deque>
#include <fstream>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "engine/core/base/check.h"
#include "engine/runtime/mesh/rank_exchange.h"

namespace moonshard {
namespace {

// More ranks than one machine has devices do not meet here: every rank holds a socket to each.
constexpr int64_t kMostLocalRanks = 64;

[[noreturn]] void Throw(const std::string& what, int error) {
  throw std::runtime_error(what + ": " + std::system_category().message(error));
}

class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  int fd() const { return fd_; }

 private:
  int fd_ = -1;
};

// A socket that keeps records apart and in order.
Socket Open() {
  Socket socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (socket.fd() < 0) Throw("cannot open a Unix socket", errno);
  return socket;
}

void SetTimeout(const Socket& socket, std::chrono::milliseconds timeout) {
  timeval time{};
  time.tv_sec = timeout.count() / 1000;
  time.tv_usec = timeout.count() % 1000 * 1000;
  for (const int option : {SO_RCVTIMEO, SO_SNDTIMEO}) {
    Check(setsockopt(socket.fd(), SOL_SOCKET, option, &time, sizeof(time)) == 0, "cannot set the timeout of a socket");
  }
}

void Send(const Socket& socket, std::span<const uint8_t> record) {
  ssize_t sent = -1;
  do {
    sent = send(socket.fd(), record.data(), record.size(), MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) Throw("cannot send a record to a rank of this machine", errno);
}

// The size of the record that arrived; 0 once the peer has closed the connection, nothing at the timeout. A peer that
// closes with our record unread resets the connection instead of ending it: which of the two this side observes depends
// on who was faster, so both count as closed.
std::optional<size_t> Receive(const Socket& socket, std::span<uint8_t> record) {
  ssize_t got = -1;
  do {
    got = recv(socket.fd(), record.data(), record.size(), MSG_TRUNC);
  } while (got < 0 && errno == EINTR);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return std::nullopt;
  if (got < 0 && errno == ECONNRESET) return 0;
  if (got < 0) Throw("cannot receive a record from a rank of this machine", errno);
  return static_cast<size_t>(got);
}

// Where sockets of this process can be reached: the boot of the machine, the network namespace and the user. Equal for
// two processes that can connect to each other; "" where it is not known.
std::string Place() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  std::string space(64, '\0');
  const ssize_t length = readlink("/proc/self/ns/net", space.data(), space.size());
  if (boot.empty() || length <= 0) return "";
  return boot + " " + space.substr(0, static_cast<size_t>(length)) + " user " + std::to_string(geteuid());
}

// A socket at an abstract name that the kernel chose, which ends with it; and the name.
std::pair<Socket, std::string> Listen(int64_t size) {
  Socket socket = Open();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (bind(socket.fd(), reinterpret_cast<sockaddr*>(&address), sizeof(sa_family_t)) != 0) {
    Throw("cannot bind a Unix socket", errno);
  }
  socklen_t length = sizeof(address);
  if (getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
      listen(socket.fd(), static_cast<int>(size)) != 0) {
    Throw("cannot listen on a Unix socket", errno);
  }
  return {std::move(socket), std::string(address.sun_path, length - offsetof(sockaddr_un, sun_path))};
}

Socket Connect(const std::string& name) {
  Socket socket = Open();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  Check(name.size() <= sizeof(address.sun_path), "a socket's name is too long");
  std::memcpy(address.sun_path, name.data(), name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
  if (connect(socket.fd(), reinterpret_cast<sockaddr*>(&address), length) != 0) {
    Throw("cannot connect to a rank of this machine", errno);
  }
  return socket;
}

bool IsSameUser(const Socket& socket) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  return getsockopt(socket.fd(), SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == geteuid();
}

class LocalExchange final : public RankExchange {
 public:
  LocalExchange(int64_t rank, std::vector<Socket> peers, std::chrono::milliseconds timeout)
      : rank_(static_cast<size_t>(rank)), peers_(std::move(peers)), timeout_(timeout) {}

  int64_t Start(std::span<const uint8_t> mine) override {
    Check(!mine.empty(), "an exchange of empty records");
    for (size_t r = 0; r < peers_.size(); ++r) {
      if (r != rank_) Send(peers_[r], mine);
    }
    sent_.emplace_back(mine.begin(), mine.end());
    return ++started_;
  }

  // A socket delivers records in the order in which they were sent, so those of earlier exchanges are read and kept.
  std::vector<uint8_t> Finish(int64_t started) override {
    while (finished_ < started) {
      std::vector<uint8_t> all = ReceiveAll(sent_.front());
      sent_.pop_front();
      kept_.emplace(++finished_, std::move(all));
    }
    auto found = kept_.extract(started);
    Check(!found.empty(), "Finish of an exchange that is not pending");
    return std::move(found.mapped());
  }

  std::vector<int> Connections() const override {
    std::vector<int> out;
    for (const Socket& peer : peers_) out.push_back(peer.fd());
    return out;
  }

 private:
  std::vector<uint8_t> ReceiveAll(const std::vector<uint8_t>& mine) {
    const size_t bytes = mine.size();
    std::vector<uint8_t> all(peers_.size() * bytes);
    for (size_t r = 0; r < peers_.size(); ++r) {
      const std::span<uint8_t> record = std::span(all).subspan(r * bytes, bytes);
      if (r == rank_) {
        std::ranges::copy(mine, record.begin());
        continue;
      }
      const std::optional<size_t> got = Receive(peers_[r], record);
      const auto who = [&] { return "rank " + std::to_string(r) + " of the group "; };
      if (!got) throw std::runtime_error(who() + "did not respond within " + std::to_string(timeout_.count()) + " ms");
      if (*got == 0) throw std::runtime_error(who() + "closed its connection");
      if (*got != bytes) {
        throw std::runtime_error(who() + "sent " + std::to_string(*got) + " bytes where " + std::to_string(bytes) +
                                 " were expected: it runs a different exchange, so the ranks are out of step");
      }
    }
    return all;
  }

  size_t rank_;
  std::vector<Socket> peers_;  // by rank; none at the own
  std::chrono::milliseconds timeout_;
  int64_t started_ = 0;
  int64_t finished_ = 0;
  std::deque<std::vector<uint8_t>> sent_;         // own records of the exchanges under way
  std::map<int64_t, std::vector<uint8_t>> kept_;  // finished, not yet requested
};

}  // namespace

std::shared_ptr<RankExchange> MakeLocalExchange(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank,
                                                int64_t size, std::chrono::milliseconds join,
                                                std::chrono::milliseconds timeout) {
  if (size > kMostLocalRanks) return nullptr;
  auto [listener, own_name] = Listen(size);
  const std::string place = Place();
  const std::string text = place + "\n" + own_name;
  store->set("at/" + std::to_string(rank), std::vector<uint8_t>(text.begin(), text.end()));
  // Every rank reads all places and compares them with its own, so all ranks decide alike whether the sockets serve:
  // one that used them alone would wait for peers that went to Gloo.
  std::vector<std::string> names;
  bool together = !place.empty();
  for (int64_t r = 0; r < size; ++r) {
    const std::vector<uint8_t> got = store->get("at/" + std::to_string(r));
    const std::string other(got.begin(), got.end());
    const size_t end = other.find('\n');
    together = together && other.substr(0, end) == place;
    names.push_back(other.substr(end + 1));
  }
  if (!together) return nullptr;
  std::vector<Socket> peers(static_cast<size_t>(size));
  const auto mine = static_cast<uint8_t>(rank);
  // All ranks listen by now: their names are in the store. The accepting side does not see who connects, so the first
  // record is the rank.
  for (int64_t r = 0; r < rank; ++r) {
    peers[static_cast<size_t>(r)] = Connect(names[static_cast<size_t>(r)]);
    Send(peers[static_cast<size_t>(r)], {&mine, 1});
  }
  SetTimeout(listener, join);
  for (int64_t missing = size - 1 - rank; missing > 0;) {
    Socket peer(accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC));
    if (peer.fd() < 0 && errno == EINTR) continue;
    if (peer.fd() < 0) Throw("a rank of this machine did not connect", errno);
    if (!IsSameUser(peer)) continue;
    SetTimeout(peer, join);
    uint8_t who = 0;
    if (Receive(peer, {&who, 1}) != size_t{1})
      throw std::runtime_error("a rank of this machine did not send its number");
    Check(who > rank && who < size && peers[who].fd() < 0, "a rank connected twice");
    peers[who] = std::move(peer);
    --missing;
  }
  for (int64_t r = 0; r < size; ++r) {
    if (r != rank) SetTimeout(peers[static_cast<size_t>(r)], timeout);
  }
  return std::make_shared<LocalExchange>(rank, std::move(peers), timeout);
}

}  // namespace moonshard
