// PeerWatch: tells a rank that waits for its GPU that another rank has ended or hangs. A kernel of NCCL waits for the
// other ranks without a limit, and the host waits for the kernel: nothing that the host could call notices that a peer
// is gone. Therefore a thread watches two things:
// - the connections of the rank exchanges (rank_exchange.h), which the system closes when a process ends, however it
//   ends;
// - whether the collectives that this rank has queued on its device end within the timeout, and whether c10d has found
//   an error of them. They are queued on one stream: of several, only the last that was used is watched.
// After the first loss it aborts all watched backends, which ends their kernels, and the host goes on with tensors of
// undefined values. Whoever uses such values outside of the ranks asks lost() first: AxisGroup does so before each
// collective and exchange, DeviceMesh::CheckPeers for everyone else.
//
// A connection also ends when a peer releases its mesh, so a mesh stops its watch before the ranks close together
// (DeviceMesh::Close). Made by DeviceMesh where ranks use NCCL.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/runtime/mesh/mesh_group.h"

namespace moonshard {

// Aborts the backends all at once: the abort of one may wait for kernels of another. Never throws.
void AbortAll(const std::vector<c10::intrusive_ptr<c10d::Backend>>& backends);

class PeerWatch {
 public:
  // A place in the queue of work of the device.
  class Marker {
   public:
    virtual ~Marker() = default;
    // Moves the marker behind all work that the calling thread has queued.
    virtual void Record() = 0;
    // Whether the device has done all work before the marker. From any thread. What it throws is taken for a failure
    // of the device, which is a loss too.
    virtual bool Passed() = 0;
  };

  // `make_marker` makes markers for the device of the collectives; empty: only connections are watched. `timeout`: the
  // longest time from Queued until the device has done the collective.
  explicit PeerWatch(std::function<std::unique_ptr<Marker>()> make_marker = {},
                     std::chrono::milliseconds timeout = std::chrono::minutes(10));
  // Stops.
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  // Watches the ranks of `group` from now on; they are known by the connections of its exchange. A group whose exchange
  // has no connections (RankExchange::Connections) adds its backend alone: a loss in another group aborts it too. The
  // backend of a `given` group is not aborted. Keeps the exchange and the backend until Stop, and not the group.
  void Add(const MeshGroup& group);
  // Call it after a collective of `group` was queued, or the device was told to wait for one; `label` is for the
  // message.
  void Queued(const std::string& group, const std::string& label);
  // Ends the thread. No loss is noticed after that. Never throws.
  void Stop();
  // Empty while no peer was lost; then what is known, for messages: "the connection of rank 3 (in tp[2,3]) has ended".
  // From any thread.
  std::string lost() const;

 private:
  struct Peer {
    int connection = -1;
    int64_t rank = 0;
    std::string group;
    std::shared_ptr<RankExchange> exchange;
  };
  struct Pending {
    std::unique_ptr<Marker> marker;
    std::chrono::steady_clock::time_point queued;
    std::string group;
    std::string label;
    bool set = false;
  };
  void Watch();
  void Wake() const;
  // What the pending collectives and the errors of c10d say of a loss; "" if nothing. With the mutex held.
  std::string LossOfCollective();
  std::string LossOfBackend();

  mutable std::mutex mutex_;
  std::vector<Peer> peers_;
  std::vector<c10::intrusive_ptr<c10d::Backend>> backends_;
  std::vector<c10::intrusive_ptr<c10d::Backend>> telling_;  // of these, that tell of errors (Backend::getError)
  std::function<std::unique_ptr<Marker>()> make_marker_;
  std::chrono::milliseconds timeout_;
  Pending oldest_;  // that the device has not passed, as far as is known
  Pending newest_;  // behind it
  std::mutex recording_;
  Pending spare_;  // with recording_ held
  std::string lost_;
  bool stopping_ = false;
  int wake_ = -1;  // an eventfd: the list of peers has changed, or the watch stops
  std::thread thread_;
};

}  // namespace moonshard
