// Combine: the types of tensors that are combined element by element, with broadcasting. Used by several rules.
#pragma once

#include "engine/analysis/types/operands.h"

namespace moonshard {

// How an element of the result depends on those of the operands.
enum class Dependence {
  kLinear,       // linear in all operands together: a sum (add)
  kMultilinear,  // linear in each operand by itself: a product (mul)
  kAny,          // not linear
};

// One tensor of several that are combined.
struct Meeting {
  const AxisType* type;
  at::IntArrayRef sizes;
};

// Compares the index maps of two shards that are combined along one dim. Returns true and puts the finer map into
// `into`, or null where a map is unknown in a backward or depends on values. Returns false and reports a fault if the
// maps differ; returns false and reports unproven if one of the maps is unknown in a forward.
bool MeetMaps(Operands& o, AxisType& into, const AxisType& other);

// Returns the type of the combined tensor, which has `made` dims; reports faults to `o`.
AxisType Meet(Operands& o, c10::ArrayRef<Meeting> tensors, int64_t made, Dependence dependence);

// Returns the type of a mean over the sharded dim of `type`: a partial mean. Reports a fault if the shards are known to
// differ in length.
AxisType MeanOfShards(Operands& o, const AxisType& type);

// All operands of the call.
c10::SmallVector<Meeting, 4> AllOperands(const Operands& o);

// Renumbers the dims of a type: `to[d]` is the new index of dim d, -1: the dim is removed.
AxisType MapDims(const AxisType& type, c10::ArrayRef<int64_t> to);

}  // namespace moonshard
