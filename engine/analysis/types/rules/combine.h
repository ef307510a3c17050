// What several rules are made of: types of tensors that meet element by element, with broadcasting.
#pragma once

#include "engine/analysis/types/operands.h"

namespace moonshard {

// How an element of the result depends on those of the operands.
enum class Dependence {
  kLinear,       // on all of them together: a sum (add)
  kMultilinear,  // on each by itself: a product (mul)
  kAny,
};

// One tensor of several that meet.
struct Meeting {
  const AxisType* type;
  at::IntArrayRef sizes;
};

// Joins what is known of the indices of two shards that meet along one dim: `into` has the finer map then. False where they
// are known to differ, which is a fault, or, in a forward, where the indices of one are not known, which is unproven.
bool MeetMaps(Operands& o, AxisType& into, const AxisType& other);

// The type of what they make, a tensor of `made` dims.
AxisType Meet(Operands& o, c10::ArrayRef<Meeting> tensors, int64_t made, Dependence dependence);

// What each rank's mean over its shard `type` is: a term of a mean, or a fault where the ranks' shards are known to differ
// in length.
AxisType MeanOfShards(Operands& o, const AxisType& type);

// All operands of the call.
c10::SmallVector<Meeting, 4> AllOperands(const Operands& o);

// Moves a shard from dim to dim, or loses it: `to[d]` is where dim d goes, -1: it goes away.
AxisType MapDims(const AxisType& type, c10::ArrayRef<int64_t> to);

}  // namespace moonshard
