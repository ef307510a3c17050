// RankExchange: exchanges small records between the ranks of one group. The ranks use it to compare their next calls.
// It is not for tensors, and its exchanges are not counted as collectives. Made by DeviceMesh, used by collective/.
//
// It has two implementations: over a Gloo backend, and, if at most 64 ranks share a machine, over Unix sockets. A
// collective of Gloo wakes two threads on every rank, which costs a third of a millisecond on busy cores. A socket
// buffers a record until the peer reads it, and costs microseconds, so a check at every call of a model is affordable.
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

  // Sends `mine` to every rank without waiting for the other ranks. Returns the number of the exchange, for Finish.
  // Every rank starts the same exchanges in the same order, with records of the same length.
  virtual int64_t Start(std::span<const uint8_t> mine) = 0;
  // Waits for an exchange and returns the records of all ranks, concatenated in rank order. Call it once per exchange.
  // Throws std::runtime_error if a rank exited, did not respond within the timeout, or sent a record of another length;
  // the exchange object cannot be used after such an error.
  virtual std::vector<uint8_t> Finish(int64_t started) = 0;
  // Descriptors, by rank of the group, of connections that end when the process of the peer ends; -1 at the own rank.
  // Only to be polled for their end (peer_watch.h). Empty for an exchange over a backend, whose connections are not
  // known.
  virtual std::vector<int> Connections() const { return {}; }
};

// Makes an exchange over Unix sockets, without a thread. Collective: the ranks find each other in `store`. Returns null
// on every rank if there are more than 64 ranks, or if they do not all run on one machine, in one network namespace and
// as one user. Waits at most `join` for the other ranks; Finish waits at most `timeout` for each rank. Throws the
// store's exceptions, and std::runtime_error if a rank did not connect in time.
std::shared_ptr<RankExchange> MakeLocalExchange(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank,
                                                int64_t size, std::chrono::milliseconds join,
                                                std::chrono::milliseconds timeout);

// Makes an exchange over all-gathers of CPU tensors on `backend`. The other collectives of `backend` must run in the
// same order on every rank.
std::shared_ptr<RankExchange> MakeBackendExchange(c10::intrusive_ptr<c10d::Backend> backend, int64_t size);

}  // namespace moonshard
