// UnitMemory: what units of fsdp take beside the shards at the busiest moment of a step, found by going through the
// step as fsdp does (fsdp/unit.h): gathered parameters, the buffers of their collectives, full gradients on their way
// to shards.
// Stage before: compile. Stage after: explain.
#pragma once

#include <cstdint>

#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {

struct UnitMemory {
  int64_t forward_peak = 0;  // bytes
  int64_t peak = 0;          // of the step
};

// Bytes of one parameter while its unit is used, and of its gradient while that is summed.
struct UnitParamBytes {
  int64_t full = 0;
  int64_t reduced = 0;
};
UnitParamBytes BytesInUnit(const CompiledPlan& plan, ParamRef param, int64_t rank);

// On rank `rank`, of a step that goes through the units in tree order, all parameters trained. The root's gradients are
// counted from the start of the backward, whenever they come. `gloo`: its reduce-scatter works on a copy of what it
// gets.
UnitMemory MemoryOfUnits(const CompiledPlan& plan, int64_t rank, bool gloo = false);

}  // namespace moonshard
