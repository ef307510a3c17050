// Gloo groups. The only source that sees Gloo's own headers is gloo.cc.
#pragma once

#include <chrono>
#include <string>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace moonshard {

// Connects to every peer before it returns, waiting at most `join` for them; a collective waits at most `timeout`.
// `host` is the address by which peers reach this process; empty: what
// GLOO_SOCKET_IFNAME names, else the machine's own name. Throws what c10d throws where a peer does not join in time.
c10::intrusive_ptr<c10d::Backend> MakeGlooGroup(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                const std::string& name, const std::string& host,
                                                std::chrono::milliseconds join, std::chrono::milliseconds timeout);

}  // namespace moonshard
