// Initial values: before a plan shards the tensors, compares the full tensors of the ranks, or broadcasts the tensors
// of rank 0.
#pragma once

#include <cstdint>

#include "engine/runtime/apply/live_tree.h"
#include "engine/runtime/collective/axis_group.h"
#include "engine/runtime/mesh/device_mesh.h"

namespace moonshard {

// The shards of all ranks form one tensor only if every rank slices its shard from the same full tensor. Ranks that
// build the model after different seeds have different full tensors. No error follows: the loss falls, but a checkpoint
// that merges the shards is a mixture of different models.
enum class InitialValues : uint8_t {
  kCompare,    // ranks with different values throw kInitialValuesDiffer
  kBroadcast,  // every rank gets the values of rank 0
  kUnchecked,  // no comparison: the caller loads all values afterwards, or has compared them
};

// Compares the full values between the ranks. Each rank hashes the bytes of every distinct parameter and buffer (64-bit
// XXH3) and combines the hashes into one, which the ranks gather over the mesh's store. If the combined hashes differ,
// the ranks gather the hashes of all tensors, to find the first tensor that differs. Cost: every byte is read once, at
// 5 to 10 GB/s on a CPU; tensors on a GPU are copied to the CPU one at a time. Tensors made under DeferInit have no
// values and cost nothing. Does nothing on one rank and in a Recording mesh.
//
// Collective over the mesh. Throws PlanError on every rank: kInitialValuesDiffer, with the first tensor that differs
// (in the tree's order) and the ranks whose values differ from the values of rank 0 (a tensor that is deferred on only
// some ranks counts as different); kRankLost.
void CompareInitialValues(const LiveTree& live, const DeviceMesh& mesh);

// Writes rank 0's values into every distinct tensor of every rank: one all-reduce of the tensor's bytes for each tensor
// and each axis of several ranks. Skips tensors without values; does nothing in a Recording mesh. Collective over the
// mesh. `check`: the CheckOptions of the AxisGroups that it makes. Throws PlanError: kCollectiveMismatch, kRankLost.
void BroadcastInitialValues(const LiveTree& live, const DeviceMesh& mesh, const CheckOptions& check);

}  // namespace moonshard
