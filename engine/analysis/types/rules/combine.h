// Combine: the types of tensors that are combined element by element, with broadcasting. Used by several rules.
#pragma once

#include "engine/analysis/types/operands.h"

namespace moonshard {

// How an element of the result depends on the elements of the operands.
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

// Compares the index maps of two shards that are combined along one dim, and sets the map of `into`. The first case
// that applies decides:
//
//   both maps are known, of different full sizes, in a backward   returns true; the map of `into` is null
//   both maps are known and correspond (Corresponds)              returns true; the map of `into` is the finer map
//   both maps are known                                           reports a fault and returns false
//   in a backward, or one of the tensors is computed from a       returns true; the map of `into` is null
//   gradient
//   values chose elements, both by the same Choice, or the full   returns true; the map of `into` is null, and
//   tensors of both have the ranks' elements one after the other  `chosen` is set
//   else                                                          reports unproven and returns false
bool MeetMaps(Operands& o, AxisType& into, const AxisType& other);

// Returns the type of the combined tensor, which has `made` dims; reports faults to `o`.
AxisType Meet(Operands& o, c10::ArrayRef<Meeting> tensors, int64_t made, Dependence dependence);

// Returns the type of a mean over the sharded dim of `type`: a partial mean. Reports a fault if the shards are known to
// differ in length.
AxisType MeanOfShards(Operands& o, const AxisType& type);

// Returns all operands of the operator as tensors that are combined.
c10::SmallVector<Meeting, 4> AllOperands(const Operands& o);

// Returns `type` for values that were computed anew: they may differ along every dim and are not known to be zero.
AxisType OfNewValues(AxisType type);

// Returns `type` with renumbered dims: `to[d]` is the new index of dim d; -1: the dim is removed.
AxisType MapDims(const AxisType& type, c10::ArrayRef<int64_t> to);

}  // namespace moonshard
