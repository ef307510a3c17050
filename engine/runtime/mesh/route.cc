// A datagram socket that is connected has the addresses of its route, and no packet was sent.
#include "engine/runtime/mesh/route.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

namespace moonshard {
namespace {

std::string NumberOf(const sockaddr* address, socklen_t size) {
  std::array<char, NI_MAXHOST> text = {};
  const int failed =
      getnameinfo(address, size, text.data(), static_cast<socklen_t>(text.size()), nullptr, 0, NI_NUMERICHOST);
  return failed == 0 ? text.data() : "";
}

std::string NumberOf(const sockaddr_storage& address, socklen_t size) {
  return NumberOf(reinterpret_cast<const sockaddr*>(&address), size);
}

}  // namespace

std::optional<NetworkRoute> RouteTo(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return std::nullopt;
  std::optional<NetworkRoute> route;
  for (const addrinfo* at = found; at != nullptr && !route; at = at->ai_next) {
    const int fd = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol);
    if (fd < 0) continue;
    sockaddr_storage own{};
    sockaddr_storage peer{};
    socklen_t own_size = sizeof(own);
    socklen_t peer_size = sizeof(peer);
    if (connect(fd, at->ai_addr, at->ai_addrlen) == 0 &&
        getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_size) == 0 &&
        getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_size) == 0) {
      route = NetworkRoute{NumberOf(own, own_size), NumberOf(peer, peer_size)};
      if (route->own.empty() || route->peer.empty()) route.reset();
    }
    close(fd);
  }
  freeaddrinfo(found);
  return route;
}

std::vector<Interface> Interfaces() {
  ifaddrs* found = nullptr;
  if (getifaddrs(&found) != 0) return {};
  std::vector<std::pair<int, Interface>> all;
  for (const ifaddrs* at = found; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || (at->ifa_flags & IFF_UP) == 0) continue;
    const int family = at->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const std::string address = NumberOf(at->ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    if (!address.empty()) all.push_back({family == AF_INET ? 0 : 1, {at->ifa_name, address}});
  }
  freeifaddrs(found);
  std::ranges::sort(all, {}, [](const auto& one) { return std::tie(one.first, one.second.name, one.second.address); });
  std::vector<Interface> out;
  for (auto& [family, one] : all) out.push_back(std::move(one));
  return out;
}

bool IsLoopback(const std::string& address) {
  in_addr four{};
  if (inet_pton(AF_INET, address.c_str(), &four) == 1) return ntohl(four.s_addr) >> 24 == 127;
  in6_addr six{};
  if (inet_pton(AF_INET6, address.c_str(), &six) != 1) return false;
  return IN6_IS_ADDR_LOOPBACK(&six) || (IN6_IS_ADDR_V4MAPPED(&six) && six.s6_addr[12] == 127);
}

}  // namespace moonshard
