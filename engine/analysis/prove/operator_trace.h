// OperatorTrace: every operator of a step with what it made, to be held against the same step unsharded, as the types say:
// what is the same on every rank equals the whole; shards put together do; terms of a sum add up to it. What verify --ops
// compares, and what shows that the rules are sound.
//
//   OperatorTrace trace;
//   TypeOptions options;
//   options.observer = trace.Recorder();
//   { TypeScope scope(*applied, options); ... }
//   OperatorDifferences differences = CompareOperators(trace, unsharded, tp_group, 2e-4);
//
// Operators are found again by module, direction, name, order and the shape of what they make.
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
  // Copies what operators compute; views and copies, of which there are more or fewer as memory lies, and memory without
  // values are left out. The trace outlives it.
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
  int64_t left_out = 0;                     // varying, unproven, or not in the other step
  double largest = 0;                       // over all ranks
  std::string largest_name;                 // "aten::mm in 'layers.0.mlp'"
  std::optional<OperatorDifference> first;  // beyond the tolerance
};

// Collective over `group`, whose axis is axis `index` of the types: every rank has traced the same step and holds the
// whole one too. Throws PlanError: kRanksDisagree-like mismatches as the group does.
OperatorDifferences CompareOperators(const OperatorTrace& trace, const OperatorTrace& full, AxisGroup& group,
                                     size_t index, double tolerance);

// What the ranks' `shards` (in rank order) of one result of this type are together; undefined where that cannot be said.
// `whole_size`: of the dim that is cut, in the whole result. Where several ranks hold the same heads, `sum` adds theirs
// up (gradients) in place of taking the first's.
at::Tensor Together(const AxisType& type, const std::vector<at::Tensor>& shards, const std::vector<AxisType>& types,
                    int64_t full_size, bool sum);

}  // namespace moonshard
