// DeviceMesh: the connection of one rank to the other ranks of a mesh. It consists of the MeshShape, the number of this
// rank, the device of this rank, and, for every mesh axis of several ranks, one c10d group (Gloo on a CPU, NCCL or
// Gloo on GPUs) and one exchange of small records (rank_exchange.h). Every rank makes the groups in the same order.
// Stage before: layout/ (MeshShape). Stage after: collective/ (AxisGroup), then apply/.
//
//   auto mesh = DeviceMesh::FromEnvironment({{"dp", 2}, {"tp", 4}});   // torchrun, srun, or MOONSHARD_STORE (launch.h)
//
// A mesh is a handle: copies share the groups, which close when the last copy is destroyed. Only one thread at a time
// may use a mesh. Every factory except Recording is collective (each rank of the mesh calls it) and throws PlanError:
//   kBadMesh    unknown axis, wrong number of ranks, missing or unusable environment variables, no such device
//   kRankLost   a rank did not join within `rendezvous_timeout`
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include "engine/layout/mesh_shape.h"
#include "engine/runtime/mesh/device.h"

namespace c10d {
class Backend;
class ProcessGroup;
class Store;
}  // namespace c10d

namespace moonshard {

struct MeshGroup;           // mesh_group.h
struct RecordedCollective;  // recording_backend.h

struct MeshOptions {
  DeviceChoice device = DeviceChoice::kAuto;
  Backend backend = Backend::kAuto;
  // The longest wait for a peer inside one collective. Only a peer that hangs causes such a wait; the exit of a peer is
  // detected at once, with NCCL by a thread that aborts this rank's communicators (peer_watch.h). With NCCL between
  // machines, an exit is noticed once c10d finds an error of a collective, and after this time at the latest. After
  // that the next call of the rank throws, and c10d does not end the process on a timeout or an error of NCCL, unless
  // TORCH_NCCL_ASYNC_ERROR_HANDLING says so. A group that belongs to the embedder (FromGroups) is never aborted: a rank
  // that waits for a kernel of it waits until the embedder's own limit.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  // The longest wait for the other ranks to join the store and the groups.
  std::chrono::milliseconds rendezvous_timeout = std::chrono::minutes(5);
  // The address at which peers reach this process, for Gloo. Empty: 127.0.0.1 if the ranks meet in a file; over TCP the
  // address from which this process reaches the store; over a given store (FromStore) the machine's own name. A network
  // interface in GLOO_SOCKET_IFNAME takes precedence over all of these.
  std::string host = {};
};

// Returns the text of an exception without the C++ backtrace that c10 appends to what().
std::string ErrorText(const std::exception& error);

class DeviceMesh {
 public:
  using Axes = std::vector<std::pair<std::string, int64_t>>;

  static DeviceMesh FromEnvironment(const Axes& axes, const MeshOptions& options = {});
  static DeviceMesh FromEnvironment(const MeshShape& shape, const MeshOptions& options = {});
  // The ranks connect through `store`. A second mesh over the same store does not interfere with the first. `rank` must
  // be below shape.world_size(). The number of the GPU is LOCAL_RANK, or `rank` if the variable is not set.
  static DeviceMesh FromStore(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank, const MeshShape& shape,
                              const MeshOptions& options = {});
  // Uses existing groups as the axes of the mesh. `groups`: this rank's group along every mesh axis of several ranks,
  // by the name of the axis; an axis without a group has one rank. The coordinate of a rank along an axis is its rank
  // in the group, so the groups must form the grid of a mesh (groups along tp contain neighbouring ranks, ...). Either
  // all groups are NCCL groups, and tensors are on the GPU of ChooseDevice(kCuda), or no group is an NCCL group, and
  // tensors are on the CPU, or with options.device = kCuda on that GPU. Between calls into moonshard the caller may
  // also use the groups, with the same calls in the same order on every rank. `store`: a store that all ranks share;
  // null: rank 0 opens a store over TCP. `options.timeout` does not apply to the groups, which have their own timeouts.
  // Also throws PlanError kBadMesh if the groups do not form a grid, or if only some of them are NCCL groups.
  using Groups = std::vector<std::pair<std::string, c10::intrusive_ptr<c10d::Backend>>>;
  static DeviceMesh FromGroups(const Groups& groups, const MeshOptions& options = {},
                               const c10::intrusive_ptr<c10d::Store>& store = {});
  using ProcessGroups = std::vector<std::pair<std::string, c10::intrusive_ptr<c10d::ProcessGroup>>>;
  static DeviceMesh FromGroups(const ProcessGroups& groups, const MeshOptions& options = {});
  // Uses one existing group as the tp axis.
  static DeviceMesh FromGroup(const c10::intrusive_ptr<c10d::Backend>& tp, const MeshOptions& options = {},
                              const c10::intrusive_ptr<c10d::Store>& store = {});
  static DeviceMesh FromGroup(const c10::intrusive_ptr<c10d::ProcessGroup>& tp, const MeshOptions& options = {});
  // Makes rank `rank` of a mesh without peers. Collectives are recorded in recorded(). Their results have the right
  // shapes, but not the right values. `device`: the device of the tensors; with the meta device, a step needs no
  // storage. `as_if_tp`: modules run the operators that they run with several ranks along tp, whatever tp is (a bias
  // that the plan adds after a redistribution along tp is added there), so that an unsharded step compares with a
  // sharded one operator by operator.
  static DeviceMesh Recording(const MeshShape& shape, int64_t rank = 0, c10::Device device = c10::Device(c10::kCPU),
                              bool as_if_tp = false);

  const MeshShape& shape() const;
  int64_t rank() const;
  int64_t coordinate(MeshAxis axis) const { return shape().Coordinate(rank(), axis); }
  c10::Device device() const;
  bool recording() const;
  bool as_if_tp() const;
  std::chrono::milliseconds timeout() const;

  // Returns this rank's group along `axis`. A group of one rank has no backend. Throws PlanError kBadMesh after Close.
  std::shared_ptr<const MeshGroup> Group(MeshAxis axis) const;
  // Returns this rank's group among the groups of `k` consecutive numbers of MeshShape::Coordinate(rank, axes); `k`
  // must divide the product of the sizes of the axes, and may be this product. The first request for a set of axes and
  // a `k` creates the groups, so all ranks must make their first requests in the same order. Throws PlanError kBadMesh
  // after Close.
  std::shared_ptr<const MeshGroup> SubGroup(AxisSet axes, int64_t k) const;

  // The store that all ranks of the mesh share (collective/store_group.h), with a key prefix of this mesh. Null in a
  // Recording mesh and after Close.
  c10::intrusive_ptr<c10d::Store> store() const;
  // The collectives that a Recording mesh has recorded.
  const std::vector<RecordedCollective>& recorded() const;

  // Throws PlanError kRankLost if the process of another rank has ended while this rank waited for its GPU: its
  // collectives over NCCL were aborted, and tensors have undefined values. Call it after a wait for the GPU and before
  // a value leaves the ranks (is printed or written), not after work that the other ranks do not wait for: ranks that
  // have closed their mesh a few seconds ago have ended too. Every collective and exchange calls it. Does nothing
  // without NCCL, where a collective that cannot complete throws.
  void CheckPeers() const;

  // Releases the groups and the store. Before that, Close waits a few seconds for the other ranks to call Close too,
  // because rank 0 may serve a store from which the other ranks still read. Groups to which other code has references
  // stay open, except NCCL groups that the mesh has made: all ranks shut them down together, and they are of no use
  // after that. After Close, FromEnvironment may make another mesh. Removes the file that MOONSHARD_STORE names, unless
  // another mesh over this file is still open. Never throws. Without Close, the destructor of the last copy releases
  // groups and store without waiting and does not remove the file, which is right for a rank that failed; NCCL groups
  // that the mesh has made are aborted.
  void Close();

 private:
  struct State;
  explicit DeviceMesh(std::shared_ptr<State> state) : state_(std::move(state)) {}
  static DeviceMesh Join(std::shared_ptr<State> state, int64_t local_rank);

  std::shared_ptr<State> state_;
};

}  // namespace moonshard
