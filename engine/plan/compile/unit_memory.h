// UnitMemory: the peak memory of fsdp units in addition to the shards: gathered parameters, buffers of collectives, and
// full gradients before their reduce-scatter. Computed by a simulation of one training step, in the order in which
// fsdp/unit.h gathers and reshards units.
// Stage before: compile. Stage after: explain.
#pragma once

#include <cstdint>

#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {

struct UnitMemory {
  int64_t forward_peak = 0;  // bytes, in the forward
  int64_t peak = 0;          // bytes, in forward and backward
};

// Bytes of one parameter of a unit on this rank, gathered over dp_shard but still sharded by tp.
struct UnitParamBytes {
  int64_t full = 0;  // the parameter, in the dtype in which it is used
  // Of its gradient, in the dtype in which it is used and in that of the reduction; 0 if the parameter is frozen.
  int64_t gradient = 0;
  int64_t reduced = 0;
};
UnitParamBytes BytesInUnit(const CompiledPlan& plan, ParamRef param, int64_t rank);

// Returns the peak memory of rank `rank` of the mesh, assuming that units run in tree order. The root unit's gradients
// are counted during the full backward. `gloo`: adds the copy that Gloo's reduce-scatter makes of its input. Zeros if
// the plan has no units.
UnitMemory MemoryOfUnits(const CompiledPlan& plan, int64_t rank, bool gloo = false);

}  // namespace moonshard
