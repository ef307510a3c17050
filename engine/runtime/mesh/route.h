// NetworkRoute: the addresses of the two ends of a connection from this machine to another, as the system's routes
// choose them. A machine may have several addresses, and its name may stand for its loopback; the address from which it
// reaches the store of the ranks is one under which the others reach it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace moonshard {

// Numbers, as getnameinfo writes them: "10.0.0.2", "fd00::2", "fe80::2%eth0".
struct NetworkRoute {
  std::string own;
  std::string peer;
};

// Returns the route to `host`, a name or an address, IPv4 or IPv6. Sends nothing. nullopt: the name is not known, or
// there is no route to it.
std::optional<NetworkRoute> RouteTo(const std::string& host, uint16_t port);

// A network interface of this machine that is up, with one of its addresses, as in NetworkRoute.
struct Interface {
  std::string name;
  std::string address;
};
// Returns the interfaces, IPv4 first, each by name and address. Empty if the system does not list them.
std::vector<Interface> Interfaces();

// Whether an address, as in NetworkRoute, reaches this machine alone.
bool IsLoopback(const std::string& address);

}  // namespace moonshard
