// A greeting is the token, a blank, the rank and a line end, which rank 0 answers with one byte. Nothing else is ever
// sent, so that a connection that becomes readable has ended: recv returns 0, or the error of a reset or of a timeout
// of TCP.
#include "engine/runtime/mesh/lifeline.h"

#include <dirent.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <utility>

#include "engine/runtime/mesh/route.h"

namespace moonshard {
namespace {

constexpr int kIdle = 10;                            // seconds
constexpr int kInterval = 5;                         // seconds
constexpr int kProbes = 9;                           // TCP_USER_TIMEOUT counts instead, where it is set
constexpr int kResend = 2000;                        // milliseconds
constexpr int kRtoMaxOption = 44;                    // TCP_RTO_MAX_MS, which older headers do not have
constexpr std::chrono::seconds kGreetingWithin{10};  // of a new connection
constexpr size_t kMostUnknown = 4096;

void SetOption(int fd, int level, int option, int value) { setsockopt(fd, level, option, &value, sizeof(value)); }

// The address `text`, a number, with a port. Null if it is none.
struct FreeAddresses {
  void operator()(addrinfo* found) const { freeaddrinfo(found); }
};
std::unique_ptr<addrinfo, FreeAddresses> AddressOf(const std::string& text, uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | (text.empty() ? AI_PASSIVE : 0);
  if (text.empty()) hints.ai_family = AF_INET6;
  addrinfo* found = nullptr;
  const char* node = text.empty() ? nullptr : text.c_str();
  if (getaddrinfo(node, std::to_string(port).c_str(), &hints, &found) != 0) return nullptr;
  return std::unique_ptr<addrinfo, FreeAddresses>(found);
}

int ListenAt(const std::string& text) {
  const auto address = AddressOf(text, 0);
  if (!address) return -1;
  const int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  if (text.empty()) SetOption(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);  // IPv4 too
  if (bind(fd, address->ai_addr, address->ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0) return fd;
  close(fd);
  return -1;
}

// The other end of a connection as a number; "": `fd` is no TCP connection.
std::string PeerOf(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return "";
  if (address.ss_family != AF_INET && address.ss_family != AF_INET6) return "";
  int type = 0;
  socklen_t type_size = sizeof(type);
  if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &type_size) != 0 || type != SOCK_STREAM) return "";
  std::array<char, NI_MAXHOST> text = {};
  const int failed = getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, text.data(),
                                 static_cast<socklen_t>(text.size()), nullptr, 0, NI_NUMERICHOST);
  return failed == 0 ? text.data() : "";
}

}  // namespace

void KeepConnection(int fd, std::chrono::milliseconds limit) {
  SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, kIdle);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, kInterval);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  SetOption(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(std::clamp<int64_t>(limit.count(), 1000, 1 << 30)));
  SetOption(fd, IPPROTO_TCP, kRtoMaxOption, kResend);
}

void KeepConnections(std::chrono::milliseconds limit) {
  DIR* const directory = opendir("/proc/self/fd");
  if (directory == nullptr) return;
  std::vector<int> fds;
  for (const dirent* entry = readdir(directory); entry != nullptr; entry = readdir(directory)) {
    if (entry->d_name[0] != '.') fds.push_back(std::atoi(entry->d_name));
  }
  closedir(directory);
  for (const int fd : fds) {
    const std::string peer = PeerOf(fd);
    if (!peer.empty() && !IsLoopback(peer)) KeepConnection(fd, limit);
  }
}

std::unique_ptr<Lifeline> Lifeline::Listen(const std::string& address, int64_t world_size, const std::string& token,
                                           std::chrono::milliseconds limit) {
  int fd = ListenAt(address);
  if (fd < 0 && address.empty()) fd = ListenAt("0.0.0.0");  // a machine without IPv6
  if (fd < 0) return nullptr;
  std::unique_ptr<Lifeline> line(new Lifeline);
  line->listener_ = fd;
  line->token_ = token;
  line->limit_ = limit;
  line->lines_.resize(static_cast<size_t>(world_size));
  return line;
}

std::unique_ptr<Lifeline> Lifeline::Connect(const std::string& address, uint16_t port, int64_t rank,
                                            const std::string& token, std::chrono::milliseconds limit) {
  const auto found = AddressOf(address, port);
  if (!found || address.empty()) return nullptr;
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return nullptr;
  std::unique_ptr<Lifeline> line(new Lifeline);
  line->token_ = token;
  line->limit_ = limit;
  line->rank_ = rank;
  line->lines_.resize(1);
  Line& to_zero = line->lines_.front();
  to_zero.fd = fd;
  to_zero.connecting = true;
  KeepConnection(fd, limit);
  if (connect(fd, found->ai_addr, found->ai_addrlen) != 0 && errno != EINPROGRESS) {
    close(std::exchange(to_zero.fd, -1));
  }
  return line;
}

Lifeline::~Lifeline() {
  for (std::vector<Line>* lines : {&lines_, &unknown_}) {
    for (const Line& line : *lines) {
      if (line.fd >= 0) close(line.fd);
    }
  }
  if (listener_ >= 0) close(listener_);
}

uint16_t Lifeline::port() const {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (listener_ < 0 || getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  if (address.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port);
  return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

Lifeline::State Lifeline::Of(int64_t rank) const {
  if (rank < 0 || rank >= static_cast<int64_t>(lines_.size())) return State::kNone;
  return lines_[static_cast<size_t>(rank)].state;
}

void Lifeline::End(Line& line) {
  close(std::exchange(line.fd, -1));
  if (line.state == State::kStands) line.state = State::kEnded;
}

void Lifeline::Look() {
  if (listener_ >= 0) {
    Accept();
  } else if (lines_.front().fd >= 0 && lines_.front().connecting) {
    Greet();
  }
  for (Line& line : lines_) {
    if (line.fd >= 0 && !line.connecting) Read(line);
  }
}

// A peer that was taken as the rank it claims to be stays that: another connection of the same rank is refused.
void Lifeline::Accept() {
  for (int fd = -1; (fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0;) {
    if (unknown_.size() >= kMostUnknown) {
      close(fd);
      continue;
    }
    KeepConnection(fd, limit_);
    Line line;
    line.fd = fd;
    line.begin = std::chrono::steady_clock::now();
    unknown_.push_back(std::move(line));
  }
  for (Line& line : unknown_) {
    Read(line);
    const size_t end = line.greeting.find('\n');
    if (line.fd >= 0 && end != std::string::npos) {
      int64_t rank = -1;
      const std::string begin = token_ + " ";
      if (line.greeting.starts_with(begin)) {
        std::from_chars(line.greeting.data() + begin.size(), line.greeting.data() + end, rank);
      }
      if (rank > 0 && rank < static_cast<int64_t>(lines_.size()) && lines_[static_cast<size_t>(rank)].fd < 0 &&
          lines_[static_cast<size_t>(rank)].state == State::kNone) {
        line.state = State::kStands;
        if (send(line.fd, "+", 1, MSG_NOSIGNAL) != 1) End(line);
        lines_[static_cast<size_t>(rank)] = std::exchange(line, Line());
      } else {
        End(line);
      }
    }
    if (line.fd >= 0 && std::chrono::steady_clock::now() - line.begin > kGreetingWithin) End(line);
  }
  std::erase_if(unknown_, [](const Line& line) { return line.fd < 0; });
}

void Lifeline::Read(Line& line) {
  constexpr size_t kMostGreeting = 128;
  std::array<char, kMostGreeting> bytes = {};
  const ssize_t count = recv(line.fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (count > 0 && line.state == State::kNone && rank_ > 0) {
    line.state = State::kStands;
    return;
  }
  if (count > 0 && line.state == State::kNone && line.greeting.size() < kMostGreeting) {
    line.greeting.append(bytes.data(), static_cast<size_t>(count));
    return;
  }
  if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
  const bool by_peer = count >= 0 || errno == ECONNRESET;
  End(line);
  if (!by_peer) line.state = State::kNone;
}

void Lifeline::Greet() {
  Line& line = lines_.front();
  pollfd ready = {line.fd, POLLOUT, 0};
  if (poll(&ready, 1, 0) <= 0) return;
  line.connecting = false;
  const std::string greeting = token_ + " " + std::to_string(rank_) + "\n";
  if (send(line.fd, greeting.data(), greeting.size(), MSG_NOSIGNAL) < 0) End(line);
}

}  // namespace moonshard
