// OpenTcpStore: c10d's TCP store at which the ranks of a launch meet.
#pragma once

#include <chrono>

#include <c10/util/intrusive_ptr.h>

#include "engine/runtime/mesh/launch.h"

namespace c10d {
class Store;
}

namespace moonshard {

// Returns a connection of its own to the store at launch.host:launch.port. On the rank that serves the store, starts
// the server first, unless this process has one at that port; the server ends with the last of its connections there.
//
// The server listens at launch.host alone where that is an address of this machine: a rank of another network does not
// reach it. It listens at all addresses where that is a name, which may stand for another address here than on other
// machines (Debian's /etc/hosts names the loopback), or an address that a router translates.
//
// `timeout` is that of the connection, and of each call of the store. Throws c10::DistNetworkError if no server is
// there in time, or if the server cannot start (the port is in use).
c10::intrusive_ptr<c10d::Store> OpenTcpStore(const Launch& launch, std::chrono::milliseconds timeout);

}  // namespace moonshard
