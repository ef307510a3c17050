// MeshGroup: one process group along a mesh axis, or over several axes, with its c10d backend. Made by DeviceMesh, used
// by collective/. This header is expensive to compile, so only sources that call c10d include it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "engine/layout/mesh_shape.h"
#include "engine/runtime/mesh/rank_exchange.h"

namespace moonshard {

class PeerWatch;  // peer_watch.h
class Waits;      // waits.h

struct MeshGroup {
  AxisSet axes = MeshAxis::kTp;
  // The sizes of the axes, outermost first; of a sub-group its size alone. The ranks are row-major over them.
  std::vector<int64_t> sizes;
  std::string name;                             // "tp[4,5,6,7]": the axes and the mesh ranks
  std::vector<int64_t> ranks;                   // mesh ranks in the group's order
  int64_t rank = 0;                             // of this process within the group
  c10::Device device = c10::Device(c10::kCPU);  // of the tensors that `backend` communicates
  c10::intrusive_ptr<c10d::Backend> backend;    // null in a group of one rank
  std::shared_ptr<RankExchange> exchange;       // null in a group of one rank, and if `recording`
  std::shared_ptr<PeerWatch> watch;             // of the mesh; null if no rank waits for a GPU in a collective
  std::shared_ptr<Waits> waits;                 // of the mesh; null if `recording`
  bool recording = false;                       // no peers exist: nothing is exchanged
  bool given = false;                           // `backend` belongs to the embedder (DeviceMesh::FromGroups)

  int64_t size() const { return static_cast<int64_t>(ranks.size()); }
};

}  // namespace moonshard
