// Combine: the types of tensors that are combined element by element, with broadcasting. Used by several rules.
#pragma once

#include "engine/analysis/types/operands.h"

namespace moonshard {

// How an element of the result depends on those of the operands.
enum class Dependence {
  kLinear,       // on all of them together: a sum (add)
  kMultilinear,  // on each by itself: a product (mul)
  kAny,
};

// One tensor of several that are combined.
struct Meeting {
  const AxisType* type;
  at::IntArrayRef sizes;
};

// Compares the index maps of two shards that are combined along one dim, and leaves the finer one in `into`. False if
// they differ, which is a fault, or if one of them is unknown in a forward, which is unproven.
bool MeetMaps(Operands& o, AxisType& into, const AxisType& other);

// The type of the result, a tensor of `made` dims.
AxisType Meet(Operands& o, c10::ArrayRef<Meeting> tensors, int64_t made, Dependence dependence);

// The type of a mean over the sharded dim of `type`: a partial mean, or a fault if the shards are known to differ in
// length.
AxisType MeanOfShards(Operands& o, const AxisType& type);

// All operands of the call.
c10::SmallVector<Meeting, 4> AllOperands(const Operands& o);

// Renumbers the dims of a type: `to[d]` is the new index of dim d, -1: the dim is removed.
AxisType MapDims(const AxisType& type, c10::ArrayRef<int64_t> to);

}  // namespace moonshard
