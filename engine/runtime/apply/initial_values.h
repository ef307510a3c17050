// Initial values: compares the full tensors of the ranks, or broadcasts those of rank 0, before a plan shards them.
#pragma once

#include <cstdint>

#include "engine/runtime/apply/live_tree.h"
#include "engine/runtime/collective/axis_group.h"
#include "engine/runtime/mesh/device_mesh.h"

namespace moonshard {

// The shards of all ranks form one tensor only if every rank slices its shard from the same full tensor. Ranks that
// build the model after different seeds have different full tensors. This causes no error: the loss falls, and a merged
// checkpoint is useless.
enum class InitialValues : uint8_t {
  kCompare,    // ranks with different values throw kInitialValuesDiffer
  kBroadcast,  // every rank takes rank 0's values
  kUnchecked,  // no comparison: the host loads all values afterwards, or has compared them
};

// Compares the full values between the ranks. Each rank hashes the bytes of every distinct parameter and buffer (64-bit
// XXH3) and combines the hashes into one, which the ranks gather over the mesh's store. If the combined hashes differ,
// the ranks gather the hashes of all tensors, to find the first tensor that differs. Cost: every byte is read once, at
// 5 to 10 GB/s on a CPU; tensors on a GPU are copied to the host one at a time. Tensors made under DeferInit have no
// values and cost nothing. Does nothing on one rank and in a Recording mesh.
//
// Collective over the mesh. Throws PlanError on every rank: kInitialValuesDiffer, with the first tensor that differs
// (in the tree's order) and the ranks whose values differ from rank 0's, also if a tensor is deferred on some ranks
// only; kRankLost.
void CompareInitialValues(const LiveTree& live, const DeviceMesh& mesh);

// Writes rank 0's values into every distinct tensor of every rank: one all-reduce of the tensor's bytes for each tensor
// and each axis of several ranks. Skips tensors without values; does nothing in a Recording mesh. Collective over the
// mesh. `check`: as for AxisGroup. Throws PlanError: kCollectiveMismatch, kRankLost.
void BroadcastInitialValues(const LiveTree& live, const DeviceMesh& mesh, const CheckOptions& check);

}  // namespace moonshard
