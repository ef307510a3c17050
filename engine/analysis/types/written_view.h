// Writes into a view: y = empty([B, T, 24]), y[..., :16] = a, y[..., 16:] = b. The type of y lies with y, and the operator that
// writes sees the slice alone; what y is afterwards follows from what it was and from what was put into it.
// Stage before: axis_type.h, rules/combine.h. Stage after: operator_checker.h, for operators in place.
#pragma once

#include <cstdint>
#include <optional>

#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include "engine/analysis/types/axis_type.h"

namespace moonshard {

// A tensor that is a box of another's elements: some of its dims whole, some narrowed, some at one index.
struct BoxInBase {
  c10::SmallVector<int64_t, 6> dims;  // of each of its dims the base's; -1: a dim of size 1 that is none of them
  c10::SmallVector<bool, 6> whole;    // of each of the base's dims: all of it is in the box
};

// nullopt where it is no box: dims joined or opened, or every second element.
std::optional<BoxInBase> FindBox(at::IntArrayRef sizes, at::IntArrayRef strides, at::IntArrayRef base_sizes,
                                 at::IntArrayRef base_strides);

// The type of a base of `dims` dims, `before` until now, once a tensor of type `written` was put into the box (null: it is
// none). Unproven where what is in the box and what is around it make no one layout.
//
//   before                     written             after
//   the same everywhere        shard(d)            shard(d): a number stands for any shard of it
//   zeros                      partial             partial
//   shard(d)                   shard(d), zeros     shard(d)
//   partial                    partial, zeros      partial
//   replicate                  replicate           replicate; unproven where one is used as shared, the other as full
//
// A shard must be all of its dim in the box: a box of some of this rank's elements are other elements on each rank.
AxisType AfterWrite(const AxisType& before, int64_t dims, const AxisType& written, const BoxInBase* box);

// The type of a view of a base of type `base`, in whose box it is (null: it is none): the same elements, or some of them.
AxisType TypeInBase(const AxisType& base, const BoxInBase* box);

}  // namespace moonshard
