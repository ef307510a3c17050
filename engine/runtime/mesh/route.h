// Route: the addresses of the two ends of a connection from this machine to another, as the system's routes choose
// them. A machine may have several addresses, and its name may stand for its loopback; the address from which it
// reaches the store of the ranks is one under which the others reach it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace moonshard {

// Numbers, as getnameinfo writes them: "10.0.0.2", "fd00::2", "fe80::2%eth0".
struct Route {
  std::string own;
  std::string peer;
};

// Returns the route to `host`, a name or an address, IPv4 or IPv6. Sends nothing. nullopt: the name is not known, or
// there is no route to it.
std::optional<Route> RouteTo(const std::string& host, uint16_t port);

// Whether an address, as in Route, reaches this machine alone.
bool IsLoopback(const std::string& address);

}  // namespace moonshard
