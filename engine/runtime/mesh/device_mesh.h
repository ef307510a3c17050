// DeviceMesh: the ranks that this process communicates with. A MeshShape, this rank, its device and one c10d group for
// every mesh axis of more than one rank (Gloo on a CPU, NCCL on GPUs) with an exchange of small records beside it
// (rank_exchange.h). The
// groups are made in one fixed order on every rank.
// Stage before: layout/ (MeshShape). Stage after: collective/ (AxisGroup), then apply/.
//
//   auto mesh = DeviceMesh::FromEnvironment({{"dp", 2}, {"tp", 4}});   // torchrun, srun, or MOONSHARD_STORE (launch.h)
//
// A mesh is a handle: copies share the groups, which close when the last copy goes. One thread at a time uses a mesh.
// Every factory except Recording is collective (each rank of the mesh calls it) and throws PlanError:
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
  // The longest wait for a peer inside one collective. A peer that died is noticed at once; this is for one that hangs.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  // The longest wait for the other ranks to join the store and the groups.
  std::chrono::milliseconds rendezvous_timeout = std::chrono::minutes(5);
  // The address that peers reach this process by, for Gloo. Empty: 127.0.0.1 where the ranks meet on this machine, else
  // the interface GLOO_SOCKET_IFNAME or the machine's own name.
  std::string host = {};
};

// The text of an exception of c10d without the C++ stack that c10 appends to what().
std::string ErrorText(const std::exception& error);

class DeviceMesh {
 public:
  using Axes = std::vector<std::pair<std::string, int64_t>>;

  static DeviceMesh FromEnvironment(const Axes& axes, const MeshOptions& options = {});
  static DeviceMesh FromEnvironment(const MeshShape& shape, const MeshOptions& options = {});
  // The ranks meet in `store`; a second mesh over the same store does not disturb the first. `rank` is below
  // shape.world_size(); local_rank (the GPU's number) is taken from LOCAL_RANK, else it is `rank`.
  static DeviceMesh FromStore(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank, const MeshShape& shape,
                              const MeshOptions& options = {});
  // Existing groups become the axes of the mesh: `groups` has this rank's group along every mesh axis of more than one
  // rank, by the axis's name; an axis that is not named has one rank. A rank's coordinate along an axis is its place in
  // the group, so the
  // groups must form the grid of a mesh (groups along tp hold neighbouring ranks, ...). Tensors are placed on the CPU,
  // or for NCCL groups on the GPU of ChooseDevice(kCuda); all groups are of one of these kinds. The caller may go on
  // using the groups between calls into moonshard, in the same order on every rank. Without a store that all ranks
  // share, rank 0 opens one over TCP. `options.timeout` does not apply to the groups: they have their own. Throws
  // PlanError kBadMesh also if the groups are not a grid, or are of two kinds.
  using Groups = std::vector<std::pair<std::string, c10::intrusive_ptr<c10d::Backend>>>;
  static DeviceMesh FromGroups(const Groups& groups, const MeshOptions& options = {},
                               const c10::intrusive_ptr<c10d::Store>& store = {});
  using ProcessGroups = std::vector<std::pair<std::string, c10::intrusive_ptr<c10d::ProcessGroup>>>;
  static DeviceMesh FromGroups(const ProcessGroups& groups, const MeshOptions& options = {});
  // One existing group as the tp axis.
  static DeviceMesh FromGroup(const c10::intrusive_ptr<c10d::Backend>& tp, const MeshOptions& options = {},
                              const c10::intrusive_ptr<c10d::Store>& store = {});
  static DeviceMesh FromGroup(const c10::intrusive_ptr<c10d::ProcessGroup>& tp, const MeshOptions& options = {});
  // Rank `rank` of a mesh without peers: collectives are recorded in recorded() and give shapes, not values. `device`:
  // of the tensors; the meta device for a step without storage.
  static DeviceMesh Recording(const MeshShape& shape, int64_t rank = 0, c10::Device device = c10::Device(c10::kCPU));

  const MeshShape& shape() const;
  int64_t rank() const;
  int64_t coordinate(MeshAxis axis) const { return shape().Coordinate(rank(), axis); }
  c10::Device device() const;
  bool recording() const;
  std::chrono::milliseconds timeout() const;

  // This rank's group along `axis`; a group of one has no backend. Throws PlanError kBadMesh after Close.
  std::shared_ptr<const MeshGroup> Group(MeshAxis axis) const;
  // Groups of `k` consecutive coordinates of `axis` (k divides its size): this rank's one. The first request creates
  // them, so all ranks of the axis must make their first requests in the same order.
  std::shared_ptr<const MeshGroup> SubGroup(MeshAxis axis, int64_t k) const;

  // The store that all ranks of the mesh share (collective/store_group.h); its keys are the mesh's own. None in a
  // Recording mesh.
  c10::intrusive_ptr<c10d::Store> store() const;
  // The collectives of a Recording mesh so far.
  const std::vector<RecordedCollective>& recorded() const;

  // Releases groups and store, after waiting a few seconds for the other ranks to call it too: rank 0 may serve the
  // store that they still read. Groups that others hold stay open. After that FromEnvironment may make another mesh,
  // and the
  // file MOONSHARD_STORE is removed unless a mesh is still open over it. Never throws. Without Close, the destructor of
  // the last copy releases them without waiting and leaves the file, which is right when this rank failed.
  void Close();

 private:
  struct State;
  explicit DeviceMesh(std::shared_ptr<State> state) : state_(std::move(state)) {}
  static DeviceMesh Join(std::shared_ptr<State> state, int64_t local_rank);

  std::shared_ptr<State> state_;
};

}  // namespace moonshard
