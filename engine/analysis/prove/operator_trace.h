// OperatorTrace: every operator of a step with its results, compared with the same step unsharded. The type determines
// the comparison: a replicated result equals the full one; a shard equals the elements of the full one at its indices
// (index_map.h), or is joined with the others if they are unknown; a partial result is reduced first. verify --ops
// reports the differences; tests use them to show that the rules are sound.
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
  // Copies the results of operators. Views and copies, whose number depends on the memory format, and uninitialized
  // memory are left out. The trace must outlive the recorder.
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
  double difference = 0;  // of the largest value; infinite where shapes do not fit
};

struct OperatorDifferences {
  int64_t compared = 0;                     // results
  int64_t by_index = 0;                     // of those: shards, compared element by element at the indices of the rank
  int64_t left_out = 0;                     // varying, unproven, or not in the other step
  double largest = 0;                       // over all ranks
  std::string largest_name;                 // "aten::mm in 'layers.0.mlp'"
  std::optional<OperatorDifference> first;  // beyond the tolerance
};

// Collective over `group`, whose axis is axis `index` of the types: every rank has traced the same step and has the
// trace of the unsharded one too. Throws PlanError as the group's collectives do.
OperatorDifferences CompareOperators(const OperatorTrace& trace, const OperatorTrace& full, AxisGroup& group,
                                     size_t index, double tolerance);

// The full result of this type from the ranks' `shards` in rank order; undefined if the type does not determine it.
// `full_size`: of the sharded dim, in the full result. If several ranks hold the same heads, `sum` adds their values
// (gradients) instead of taking those of the first.
at::Tensor Together(const AxisType& type, const std::vector<at::Tensor>& shards, const std::vector<AxisType>& types,
                    int64_t full_size, bool sum);

}  // namespace moonshard
