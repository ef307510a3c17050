// GradientSum: sums the gradients of parameters whose gradient is partial (layout `shared`: a replicated norm applied
// to shards, q_norm on local heads; and key/value heads that several ranks hold) over their ranks, once per backward.
//
// While a backward runs, each such parameter's new gradient is held back; when the outermost backward ends, one flat
// buffer per (group, dtype, device), in the order of Add, is all-reduced and added to .grad. Parameters in buckets
// (bucket_sum.h) are summed while the backward still runs. So .grad always holds the full sum of all backwards so far:
// gradient accumulation, several uses of a parameter, retain_graph and recomputation (nested backwards) stay correct. A
// backward that throws, on every rank at the same place, leaves .grad of these parameters unchanged.
//
// Every rank must run the same number of backwards in the same order. Ranks need not use the same parameters: an unused
// one counts as zero, and its .grad stays undefined if no rank uses it. A backward that reaches none of them on one
// rank still takes part if it goes through a tensor that Watch received (the model's outputs). One that reaches neither
// leaves the others waiting until the mesh's timeout, and they fail with kRankLost: within the process it is the same
// as a rank that runs no backward.
//
// torch::autograd::grad bypasses it: it returns this rank's terms. Sparse gradients are an error (kNotSupported).
// Stage before: collective. Stage after: apply, which adds the parameters once they are sharded.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/runtime/collective/axis_group.h"
#include "engine/runtime/redistribute/backward_end.h"
#include "engine/runtime/redistribute/bucket_sum.h"

namespace moonshard {

class GradientSum {
 public:
  // `label`: names its collectives in errors.
  explicit GradientSum(std::shared_ptr<BackwardEnd> end = std::make_shared<BackwardEnd>(),
                       std::string label = "the sum of the gradients of replicated parameters");
  ~GradientSum();
  GradientSum(const GradientSum&) = delete;
  GradientSum& operator=(const GradientSum&) = delete;

  // Sums the gradient of `parameter` (a leaf) over `group`. The order of calls is the same on every rank. A parameter
  // that is added with several groups is summed over one after the other. A group of one rank adds nothing.
  void Add(const at::Tensor& parameter, std::shared_ptr<AxisGroup> group);
  // Only elements [begin, begin + length) of `dim`: the part of a fused weight whose heads are replicated.
  void Add(const at::Tensor& parameter, std::shared_ptr<AxisGroup> group, int64_t dim, int64_t begin, int64_t length);

  // Sums these parameters, each added in full to all of `groups`, in buckets over those groups, after their other
  // groups (which only parameters of a bucket with `at_end` may have). Call once, after all calls of Add; the same on
  // every rank.
  struct Bucket {
    std::vector<at::Tensor> parameters;  // of one dtype and device
    bool at_end = false;
  };
  void SetBuckets(const std::vector<Bucket>& buckets, std::vector<std::shared_ptr<AxisGroup>> groups);

  // Multiplies the sum by `factor` (1 / ranks for a mean) before it is added to .grad. Call after the parameter's Adds;
  // nothing for a parameter that is not summed.
  void Scale(const at::Tensor& parameter, double factor);

  // Declares that the gradient of `parameter` comes from AccumulateGrad instead of from autograd (fsdp computes it).
  // Call before the parameter's Adds.
  void SetManual(const at::Tensor& parameter);
  // Whether it was added with a group of more than one rank: only then is AccumulateGrad allowed.
  bool Sums(const at::Tensor& parameter) const;
  // Adds to the parameter's gradient of this backward. Call within the backward, at the latest in an action of the
  // BackwardEnd that was added before this sum's first Add.
  void AccumulateGrad(const at::Tensor& parameter, at::Tensor gradient);

  // false (micro-batches before the last): gradients accumulate locally and .grad does not change; the next backward
  // with true sums all of them. The same on every rank.
  void SetSums(bool sums);
  // Drops gradients that accumulated locally. Call between backwards; the same on every rank.
  void DropUnsynced();

  bool empty() const;

  // Call at the start of every outermost forward: installs hooks on parameters that became trainable, or whose dtype
  // changed (autograd then drops its accumulator node with the hooks). Tens of nanoseconds per parameter.
  void Rearm();
  // Call with every output of an outermost forward: a backward through it takes part in the sum on this rank, whichever
  // parameters it reaches.
  void Watch(const at::Tensor& output);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace moonshard
