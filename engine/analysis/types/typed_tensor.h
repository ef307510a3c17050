// TypedTensor: functions that store the type of a tensor in the tensor itself, so that the tensors that autograd saves
// keep their types.
// Stage before: axis_type.h. Stage after: operator_checker.h.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "engine/analysis/types/axis_type.h"

namespace moonshard {

// Sets the type of the tensor's current values; a later write into the same memory makes the type void. `version`: the
// value of the tensor's version counter for which the type holds; -1: the current value. `rises`: autograd is about to
// increment the counter once, and the type holds after this increment too.
void SetType(const at::Tensor& tensor, TensorType type, int64_t version = -1, bool rises = false);
// Returns the type of `tensor`; the tensor owns the type. Null if SetType was not called, or if the memory was written
// to after SetType.
const TensorType* TypeOf(const at::Tensor& tensor);

// Chunks of unsafe_split have the memory of the tensor that was split, and count their writes apart from it and from
// each other. SplitOf returns the number that SetSplit has noted with the type of a chunk of one call of unsafe_split,
// and 0 for any other tensor; SetType keeps it. Call SetSplit after SetType.
void SetSplit(const at::Tensor& tensor, int64_t split);
int64_t SplitOf(const at::Tensor& tensor);

// Whether the host may have filled the memory of `tensor`: no operator has, since it was allocated. SetType keeps it.
// Call SetHostMemory after SetType; without axes a tensor has no AxisType::unwritten.
void SetHostMemory(const at::Tensor& tensor, bool of_host);
bool IsHostMemory(const at::Tensor& tensor);

// Which result of which operator a tensor is. SetType keeps it. Call SetSource after SetType.
struct Source {
  int64_t call = 0;    // the number of the operator's call, from 1; 0: not known. Of a leaf: -1 - its place among them
  int64_t result = 0;  // the place among the results; of a leaf: the number of leaves
  bool operator==(const Source&) const = default;
};
void SetSource(const at::Tensor& tensor, Source source);
Source SourceOf(const at::Tensor& tensor);

// The tensor's version counter; 0 for tensors of inference mode, which have no counter.
int64_t VersionOf(const at::Tensor& tensor);

}  // namespace moonshard
