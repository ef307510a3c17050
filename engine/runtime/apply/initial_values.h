// InitialValues: whether the ranks of a model begin with the same parameters.
//
// A shard of one rank belongs to the shards of the others only if all are shards of one tensor. Ranks that build the
// model after different seeds have other tensors, and what they train is not one model: nothing fails, the loss
// falls, and a merged checkpoint is noise. So the full values are compared before they are sharded: one 64-bit XXH3 of
// the bytes of every distinct parameter and buffer, combined into one hash that the ranks gather over the mesh's store.
// Only where that differs, the hashes of all parameters are gathered, to name the first.
//
// Cost: reading every byte once, 5 to 10 GB/s on a CPU, and one exchange over the store. Tensors on a GPU are copied to
// the host one at a time, at the speed of that copy. Tensors made under DeferInit have no values and cost nothing.
// Stage before: a compiled plan that can be applied. Stage after: sharding (applied_plan.cc).
#pragma once

#include <cstdint>

#include "engine/runtime/apply/live_tree.h"
#include "engine/runtime/collective/axis_group.h"
#include "engine/runtime/mesh/device_mesh.h"

namespace moonshard {

enum class InitialValues : uint8_t {
  kCompare,    // ranks that differ throw kInitialValuesDiffer
  kBroadcast,  // every rank takes rank 0's
  kUnchecked,  // neither: the host loads all values afterwards, or has compared them
};

// Collective over the mesh; nothing on one rank and in a Recording mesh. Throws PlanError on every rank:
// kInitialValuesDiffer with the first parameter (in the tree's order) and the ranks that differ from rank 0 in it; also
// where a parameter is deferred on some ranks alone. kRankLost.
void CompareInitialValues(const LiveTree& live, const DeviceMesh& mesh);

// Writes rank 0's values into every distinct tensor of every rank, one tensor and one all-reduce of its bytes for each
// axis above 1 at a time. Tensors without values are skipped, as are all in a Recording mesh.
void BroadcastInitialValues(const LiveTree& live, const DeviceMesh& mesh, const CheckOptions& check);

}  // namespace moonshard
