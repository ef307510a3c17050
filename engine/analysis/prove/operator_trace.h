// OperatorTrace: every operator of a step with its results, for a comparison with the unsharded step. The type of a
// result determines how it is compared: a replicated result must equal the unsharded result; a shard must equal the
// elements of the unsharded result at the shard's indices (index_map.h), or, if the indices are unknown, is
// concatenated with the shards of the other ranks first; a partial result is reduced first. verify --ops reports the
// differences; tests use them to show that the rules are sound.
//
//   OperatorTrace trace;
//   TypeOptions options;
//   options.observer = trace.Recorder();
//   { TypeScope scope(*applied, options); ... }
//   OperatorDifferences differences = CompareOperators(trace, unsharded, tp_group, 2e-4);
//
// Operators of the two steps are matched by module, direction, name, order and the shapes of their results.
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
  // Returns an observer that copies the results of operators into this trace. Left out are views and copies, whose
  // count depends on the memory format, uninitialized memory, and additions in the backward, whose order may differ at
  // tp=1. The trace must outlive the observer.
  std::function<void(const CheckedOperator&)> Recorder();
  const std::vector<TracedOperator>& operators() const { return operators_; }

 private:
  std::vector<TracedOperator> operators_;
};

struct OperatorDifference {
  std::string path;
  bool backward = false;
  std::string name;
  std::string type;       // of the result that differs
  double difference = 0;  // relative to the largest value; infinite if the shapes differ
};

struct OperatorDifferences {
  int64_t compared = 0;                     // number of compared results
  int64_t by_index = 0;                     // number of these that are shards, compared at the indices of the rank
  int64_t left_out = 0;                     // varying, unproven, or not in the other step
  double largest = 0;                       // largest difference over all ranks
  std::string largest_name;                 // "aten::mm in 'layers.0.mlp'"
  std::optional<OperatorDifference> first;  // the first above the tolerance, in the order of the unsharded step
};

// Compares a trace of the sharded step with `full`, the trace of the unsharded step. Every rank passes both traces.
// Collective over `group`; `index` is the index of the group's axis in the types. Throws the PlanErrors of the group's
// collectives.
OperatorDifferences CompareOperators(const OperatorTrace& trace, const OperatorTrace& full, AxisGroup& group,
                                     size_t index, double tolerance);

// Returns the full tensor of type `type` from the ranks' `shards` and `types`, both in rank order; undefined if the
// type does not determine the full tensor. `full_size`: of the sharded dim in the full tensor. If several ranks hold
// the same heads, the values of the first of these ranks are taken, or with `sum` the values of these ranks are added
// (gradients).
at::Tensor Together(const AxisType& type, const std::vector<at::Tensor>& shards, const std::vector<AxisType>& types,
                    int64_t full_size, bool sum);

}  // namespace moonshard
