// WrittenView: writes into a view, as in y = empty([B, T, 24]), y[..., :16] = a, y[..., 16:] = b. The type of y is kept
// with y, and the operator that writes sees only the slice; the new type of y follows from its old type and that of the
// written tensor.
// Stage before: axis_type.h, rules/combine.h. Stage after: operator_checker.h, for operators in place.
#pragma once

#include <cstdint>
#include <optional>

#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include "engine/analysis/types/axis_type.h"

namespace moonshard {

// A view that is a box of its base's elements: some dims full, some narrowed, some at one index.
struct BoxInBase {
  c10::SmallVector<int64_t, 6> dims;  // for each dim of the view the dim of the base; -1: a new dim of size 1
  c10::SmallVector<bool, 6> whole;    // for each dim of the base: all of it is in the box
};

// nullopt if the view is not a box: joined or split dims, or every second element.
std::optional<BoxInBase> FindBox(at::IntArrayRef sizes, at::IntArrayRef strides, at::IntArrayRef base_sizes,
                                 at::IntArrayRef base_strides);

// The type of a base of `dims` dims and type `before` after a tensor of type `written` is written into the box (null:
// not a box). Unproven if the elements inside and outside of the box do not have one layout.
//
//   before                     written             after
//   the same everywhere        shard(d)            shard(d): a number equals any shard of itself
//   zeros                      partial             partial
//   shard(d)                   shard(d), zeros     shard(d)
//   partial                    partial, zeros      partial
//   replicate                  replicate           replicate; unproven where one is used as shared, the other as full
//
// The box must contain all of the sharded dim: a box of some local indices has different elements on each rank.
AxisType AfterWrite(const AxisType& before, int64_t dims, const AxisType& written, const BoxInBase* box);

// The type of a view of a base of type `base`; `box`: its place in the base (null: not a box).
AxisType TypeInBase(const AxisType& base, const BoxInBase* box);

}  // namespace moonshard
