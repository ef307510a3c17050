// Gloo groups. Only gloo.cc includes Gloo's own headers.
#pragma once

#include <chrono>
#include <string>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace moonshard {

// Makes a Gloo group and connects to every peer. Waits at most `join` for the peers. A collective of the group waits at
// most `timeout` for a peer. `host`: the address at which peers reach this process; empty: the machine's own name. A
// network interface in GLOO_SOCKET_IFNAME takes precedence over `host`. Throws c10d's exception if a peer does not join
// in time.
c10::intrusive_ptr<c10d::Backend> MakeGlooGroup(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                const std::string& name, const std::string& host,
                                                std::chrono::milliseconds join, std::chrono::milliseconds timeout);

}  // namespace moonshard
