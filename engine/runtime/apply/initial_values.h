// Initial values: full tensors compared between ranks, or broadcast, before a plan is applied, because shards of
// different models are no model.
#pragma once

#include <cstdint>

#include "engine/runtime/apply/live_tree.h"
#include "engine/runtime/collective/axis_group.h"
#include "engine/runtime/mesh/device_mesh.h"

namespace moonshard {

// A shard of one rank belongs to the shards of the others only if all were made from one tensor. Ranks that build the
// model after different seeds hold other tensors: nothing fails, the loss falls, and a merged checkpoint is noise.
enum class InitialValues : uint8_t {
  kCompare,    // ranks that differ throw kInitialValuesDiffer
  kBroadcast,  // every rank takes rank 0's
  kUnchecked,  // neither: the host loads all values afterwards, or has compared them
};

// Compares the full values over the ranks: one 64-bit XXH3 of the bytes of every distinct parameter and buffer,
// combined into one hash that the ranks gather over the mesh's store. Only where that differs are the hashes of all
// parameters gathered, to name the first. Cost: every byte is read once, 5 to 10 GB/s on a CPU; tensors on a GPU are
// copied to the host one at a time. Tensors made under DeferInit have no values and cost nothing. Collective over the
// mesh; nothing on one rank and in a Recording mesh. Throws PlanError on every rank:
// kInitialValuesDiffer with the first parameter (in the tree's order) and the ranks that differ from rank 0 in it; also
// where a parameter is deferred on some ranks alone. kRankLost.
void CompareInitialValues(const LiveTree& live, const DeviceMesh& mesh);

// Writes rank 0's values into every distinct tensor of every rank, one tensor and one all-reduce of its bytes for each
// axis above 1 at a time. Tensors without values are skipped, as are all in a Recording mesh.
void BroadcastInitialValues(const LiveTree& live, const DeviceMesh& mesh, const CheckOptions& check);

}  // namespace moonshard
