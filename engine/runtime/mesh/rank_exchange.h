// RankExchange: small records between the ranks of one group, for comparing what they are about to do. No tensor goes
// through it, and none of its traffic is counted. Made by DeviceMesh, used by collective/.
//
// Two implementations: over the group's Gloo backend, and, where the ranks share a machine, over sockets of that
// machine. A collective of Gloo wakes two threads on every rank, which on busy cores costs a third of a millisecond; a
// record in a socket waits there for its reader, and costs microseconds. That makes a check at every call of a model
// affordable.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace moonshard {

class RankExchange {
 public:
  virtual ~RankExchange() = default;

  // Sends `mine` to every rank without waiting for them. Returns the exchange, for Finish. Every rank starts the same
  // exchanges in the same order, with records of one length.
  virtual int64_t Start(std::span<const uint8_t> mine) = 0;
  // The ranks' records of an exchange, in rank order, one after the other; once for each. Throws std::runtime_error
  // where a rank exited, did not respond within the timeout, or sent a record of another length; the exchange cannot be
  // used after that.
  virtual std::vector<uint8_t> Finish(int64_t started) = 0;
};

// Over the sockets of one machine, without a thread. Collective: the ranks find each other in `store`. Null, on every
// rank, where they do not all run on one machine, in one network namespace and for one user. Throws what the store
// throws and std::runtime_error where a rank did not join within `join`.
std::shared_ptr<RankExchange> MakeLocalExchange(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank,
                                                int64_t size, std::chrono::milliseconds join,
                                                std::chrono::milliseconds timeout);

// Over all-gathers of CPU tensors on `backend`, whose other collectives must be in the same order on every rank.
std::shared_ptr<RankExchange> MakeBackendExchange(c10::intrusive_ptr<c10d::Backend> backend, int64_t size);

}  // namespace moonshard
