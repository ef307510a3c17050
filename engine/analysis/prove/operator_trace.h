// OperatorTrace: every operator of a step with its results, for a comparison with the unsharded step. The type of a
// result determines how it is compared: a replicated result must equal the unsharded result; a shard must equal the
// elements of the unsharded result at the shard's indices (index_map.h), or, if the indices are unknown, is
// concatenated with the shards of the other ranks first; a partial result is reduced first. verify --ops reports the
// differences; tests use the comparison to show that the rules are sound.
//
//   OperatorTrace trace;
//   TypeOptions options;
//   options.observer = trace.Recorder();
//   { TypeScope scope(*applied, options); ... }
//   OperatorDifferences differences = CompareOperators(trace, unsharded, tp_group, /*index=*/0, 2e-4);
//
// Operators of the two steps are matched by module, direction, name, order and the shapes of the results; in a
// backward, and where one of the steps runs more operators of the name, by the values of the results in place of the
// order.
// Stage before: type_scope.h. Stage after: verify.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/analysis/types/operator_checker.h"
#include "engine/runtime/collective/axis_group.h"

namespace moonshard {

struct TracedOperator {
  std::string path;
  bool backward = false;
  std::string name;                 // "aten::mm"
  std::vector<at::Tensor> outputs;  // copies
  std::vector<TensorType> types;
};

class OperatorTrace {
 public:
  // Returns an observer that copies the results of operators into this trace. The trace leaves out views and copies,
  // because their number depends on the memory format; operators that return uninitialized memory; and additions in the
  // backward, because their order may differ at tp=1. The trace must outlive the observer.
  std::function<void(const CheckedOperator&)> Recorder();
  const std::vector<TracedOperator>& operators() const { return operators_; }

 private:
  std::vector<TracedOperator> operators_;
};

struct OperatorDifference {
  std::string path;
  bool backward = false;
  std::string name;
  std::string type;  // of the result that differs
  // Largest absolute difference divided by the largest finite absolute value of the unsharded result (or by 1e-6 if
  // that is larger). At most 1e6, which is also the value if the shapes or integer values differ, or if it is NaN.
  double difference = 0;
};

struct OperatorDifferences {
  int64_t compared = 0;  // number of compared results
  int64_t by_index = 0;  // number of compared results that are shards and were compared at the rank's indices
  // Number of results without a match in the other step, or of a type that is not compared, or that differ where
  // another axis shards the same dim or has terms of the same sum: the ranks of the axis may then have other elements
  // or terms.
  int64_t left_out = 0;
  int64_t left_out_different = 0;  // number of the last of these
  int64_t left_out_routed = 0;     // number of results of a rank's own experts, which are left out too
  double largest = 0;              // largest difference over all ranks
  std::string largest_name;        // "aten::mm in 'layers.0.mlp'"
  // The first difference above the tolerance, in the order of the unsharded step.
  std::optional<OperatorDifference> first;
};

// Compares `trace`, the trace of the sharded step, with `full`, the trace of the unsharded step. Every rank passes both
// traces. Collective over `group`; `index` is the index of the group's axis in the types. A difference above
// `tolerance` is a candidate for OperatorDifferences::first. `zigzag`: whether the axis shards the tokens of a sequence
// in zigzag; a shard whose indices are not known then counts as such tokens. `same_rows`: whether all ranks of the
// axis, which is ep, have the rows of the full step. What is no result of a rank's own experts, nor of a sum over
// ep, is then the same on each rank, whatever its type is. `inner`: the inner factor of the axis, whose type is the one
// behind `index`; 1: of one factor. Throws the PlanErrors of the group's collectives.
OperatorDifferences CompareOperators(const OperatorTrace& trace, const OperatorTrace& full, AxisGroup& group,
                                     size_t index, double tolerance, bool zigzag = false, bool same_rows = false,
                                     int64_t inner = 1);

// Reassembles the full tensor from the local tensors `shards` of all ranks, in rank order. `type` is the type of the
// local tensors; `types` has each rank's own type, since lengths differ. `full_size` is the size of the sharded dim in
// the full tensor. Returns an undefined tensor if `type` is not replicate, shard or partial, or if the local tensors do
// not fit together. If several ranks hold the same heads, the result contains the values of the first of these ranks,
// or with `sum` the sum of the values of these ranks (for gradients).
at::Tensor Together(const AxisType& type, const std::vector<at::Tensor>& shards, const std::vector<AxisType>& types,
                    int64_t full_size, bool sum);

}  // namespace moonshard
