// ReplicaBytes: compares and copies, byte for byte, the values of parameters and buffers that several ranks hold.
// A parameter or buffer is a replica along an axis if the plan does not shard it there and the model has a group along
// the axis. Key/value heads that only some ranks of an axis share are no replicas. Tensors are named by their index
// into AppliedPlan::parameters(). Internal to this directory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/runtime/apply/applied_plan.h"
#include "engine/runtime/collective/label.h"

namespace moonshard {

// The axes of several ranks along which the model has a group, in the order of kMeshAxes: the same on every rank.
std::vector<MeshAxis> GroupedAxes(const AppliedPlan& model);

// Whether `parameter` is a replica along `axis`, one of GroupedAxes.
bool IsReplica(const LiveParameter& parameter, MeshAxis axis);

// The words of the ranks of this rank's group along `axis`.
struct GroupWords {
  MeshAxis axis = MeshAxis::kTp;
  std::vector<int64_t> ranks;               // of the mesh, by coordinate
  std::vector<std::vector<int64_t>> words;  // one row per rank
};

// Exchanges `words` along each of GroupedAxes. Collective: one all-gather per axis; none if `words` is empty. All ranks
// pass the same number of words.
std::vector<GroupWords> GatherWords(const AppliedPlan& model, const std::vector<int64_t>& words,
                                    const CollectiveLabel& label);

// One 64-bit hash of the bytes of each of the tensors `compared`. Copies tensors on a GPU to the host.
std::vector<int64_t> HashesOf(const AppliedPlan& model, const std::vector<size_t>& compared);

// Returns the ranks of this rank's groups that hold other bytes than the first rank of the group, for each of the
// tensors `compared` for which there are such ranks. The first words of `gathered` are HashesOf(model, compared).
std::map<size_t, std::set<int64_t>> RanksThatDiffer(const AppliedPlan& model, const std::vector<size_t>& compared,
                                                    const std::vector<GroupWords>& gathered);
// The same for hashes that it exchanges itself, with GatherWords. `compared` must be equal on all ranks.
std::map<size_t, std::set<int64_t>> RanksThatDiffer(const AppliedPlan& model, const std::vector<size_t>& compared,
                                                    const CollectiveLabel& label);

// Copies into each of `tensors`, along every axis along which it is a replica, the bytes of the rank with coordinate 0.
// A tensor has the dtype and the local shape of its parameter. Collective: one flat all-reduce of bytes along each axis
// with replicas. The keys must be equal on all ranks.
void CopyFirstReplica(const AppliedPlan& model, const std::map<size_t, at::Tensor>& tensors,
                      const CollectiveLabel& label);

}  // namespace moonshard
