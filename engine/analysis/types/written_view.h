// WrittenView: the types of a base and its views after a write into a view, as in y = empty([B, T, 24]), y[..., :16] =
// a, y[..., 16:] = b. The operator that writes has only the slice as an operand; the new type of y follows from the old
// type of y and the type of the written tensor.
// Stage before: axis_type.h, rules/combine.h. Stage after: operator_checker.h, for operators in place.
#pragma once

#include <cstdint>
#include <optional>

#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include "engine/analysis/types/axis_type.h"

namespace moonshard {

// A view that is a box of its base's elements: each dim of the base is full, narrowed, or selected at one index.
struct BoxInBase {
  c10::SmallVector<int64_t, 6> dims;  // for each dim of the view: the dim of the base; -1: a new dim of size 1
  c10::SmallVector<bool, 6> whole;    // for each dim of the base: whether the box contains the full dim
};

// Returns the box of a view with these sizes and strides; nullopt if the view is not a box (flattened or split dims, a
// strided slice).
std::optional<BoxInBase> FindBox(at::IntArrayRef sizes, at::IntArrayRef strides, at::IntArrayRef base_sizes,
                                 at::IntArrayRef base_strides);

// Returns the type of a base of `dims` dims and type `before` after a tensor of type `written` is written into the box
// (null: the view is not a box). Unproven if the elements inside and outside of the box have different layouts.
//
//   before                 written                          after
//   all elements equal     shard(d)                         shard(d): a constant equals any of its shards
//   zeros                  partial                          partial
//   shard(d)               shard(d), uniform along d        shard(d)
//   partial                partial, zeros                   partial
//   replicate              replicate                        replicate; unproven if one is full, the other shared
//
// The box must contain the full local shard along the sharded dim: a box of some local indices contains different full
// indices on each rank.
AxisType AfterWrite(const AxisType& before, int64_t dims, const AxisType& written, const BoxInBase* box);

// Returns the type of a view of a base of type `base`. `box`: the view's box in the base (null: the view is not a box).
AxisType TypeInBase(const AxisType& base, const BoxInBase* box);

}  // namespace moonshard
