// GradientSum: sums partial gradients of parameters over ranks, once per backward. These are the gradients of
// parameters with layout `shared` (a replicated norm applied to shards, q_norm on local heads), of key/value heads that
// several ranks hold, of parameters that ddp replicates, and of fsdp shards whose gradients are summed over a further
// axis.
//
// While a backward runs, the new gradient of each such parameter is held back. When the outermost backward ends, one
// flat buffer per (group, dtype, device), in the order of Add, is all-reduced and added to .grad. Parameters in buckets
// (bucket_sum.h) are summed while the backward still runs. So .grad always holds the full sum of all backwards so far,
// also with gradient accumulation, several uses of a parameter, retain_graph and recomputation (nested backwards). A
// backward that throws at the same place on every rank leaves .grad of these parameters unchanged.
//
// Every rank must run the same number of backwards in the same order. Ranks need not use the same parameters: a
// gradient that a rank does not compute counts as zero, and .grad stays undefined if no rank uses the parameter. A rank
// takes part in the sum if its backward reaches one of these parameters, or a tensor that Watch received (the model's
// outputs). If one rank runs no backward, or its backward reaches no such parameter and no such tensor, the other ranks
// wait until the mesh's timeout and fail with kRankLost.
//
// torch::autograd::grad of such a parameter would return only this rank's term of each sum: it throws a PlanError
// (kUnshardedFunction). Sparse gradients are an error (kNotSupported).
// Stage before: collective. Stage after: apply, which adds the parameters after they are sharded.
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
  // `label`: the name of the collectives in errors.
  explicit GradientSum(std::shared_ptr<BackwardEnd> end = std::make_shared<BackwardEnd>(),
                       std::string label = "the sum of the gradients of replicated parameters");
  ~GradientSum();
  GradientSum(const GradientSum&) = delete;
  GradientSum& operator=(const GradientSum&) = delete;

  // Sums the gradient of `parameter` (a leaf) over `group`. The order of calls must be the same on every rank. A
  // parameter that is added with several groups is summed over one group after the other. A group of one rank is
  // ignored.
  void Add(const at::Tensor& parameter, std::shared_ptr<AxisGroup> group);
  // As above, but sums only the elements [begin, begin + length) of `dim`, for the heads of a fused weight that several
  // ranks hold.
  void Add(const at::Tensor& parameter, std::shared_ptr<AxisGroup> group, int64_t dim, int64_t begin, int64_t length);

  // Sums the parameters of these buckets over `group` in one all-reduce per bucket. Every parameter must have been
  // added in full with `group`. Parameters of a bucket with `at_end` may have other groups too, over which they are
  // summed first. Call it once, after all calls of Add, with the same buckets on every rank.
  struct Bucket {
    std::vector<at::Tensor> parameters;  // of one dtype and device
    bool at_end = false;
  };
  void SetBuckets(const std::vector<Bucket>& buckets, std::shared_ptr<AxisGroup> group);

  // Multiplies the sum by `factor` (1 / ranks for a mean) before it is added to .grad. Call it after all calls of Add
  // for the parameter. The gradient of a parameter that is not summed (an expert that received the tokens of all
  // ranks) is multiplied too, when the backward ends.
  void Scale(const at::Tensor& parameter, double factor);

  // Names the parameter in errors. Call it after the calls of Add for the parameter. Does nothing for a parameter that
  // is not summed.
  void SetPath(const at::Tensor& parameter, std::string path);

  // Declares that the gradient of `parameter` comes from AccumulateGrad instead of from autograd (fsdp computes it).
  // Call it before any Add for the parameter.
  void SetManual(const at::Tensor& parameter);
  // Whether `parameter` was added with a group of more than one rank. AccumulateGrad may be called only for such a
  // parameter.
  bool Sums(const at::Tensor& parameter) const;
  // Adds `gradient` to the parameter's gradient of this backward. Call it within the backward, or in an `end` action
  // that was added to BackwardEnd before the first Add of this GradientSum.
  void AccumulateGrad(const at::Tensor& parameter, at::Tensor gradient);

  // After SetSums(false) (micro-batches before the last), gradients accumulate locally and .grad does not change. The
  // next backward after SetSums(true) sums all of them. Make the same calls on every rank.
  void SetSums(bool sums);
  // Drops the gradients that accumulated locally. Call it between backwards, on every rank.
  void DropUnsynced();

  bool empty() const;  // whether no gradient is summed

  // Call it at the start of every outermost forward: installs hooks on parameters that became trainable, or whose dtype
  // changed (autograd then drops the accumulator node with its hooks). Takes tens of nanoseconds per parameter.
  void Rearm();
  // Call it with every output of an outermost forward: this rank then takes part in the sum of a backward through
  // `output`, even if the backward reaches none of the parameters.
  void Watch(const at::Tensor& output);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace moonshard
