// GradientSum: sums the gradients of parameters whose gradient is partial (layout `shared`: a replicated norm used on
// shards, q_norm on local heads; and key/value heads that several ranks hold) over their ranks, once per backward.
//
// While a backward runs, each such parameter's new gradient is held back; when the outermost backward ends, one flat
// buffer per (group, dtype, device), in the order of Add, is all-reduced and added to .grad. What is in buckets
// (bucket_sum.h) is summed beside the backward. So .grad always holds the full sum of all backwards so far: gradient
// accumulation, several uses of a parameter, retain_graph and recomputation (nested backwards) stay right. A backward that
// throws, on every rank at the same place, leaves .grad of these parameters as it was.
//
// Every rank must run as many backwards in the same order. Ranks need not use the same parameters: an unused one counts
// as zero, and its .grad stays undefined if it is unused everywhere. A backward that reaches none of them on one rank
// takes part all the same if it goes through a tensor that Watch has seen (the model's outputs). One that reaches
// neither leaves the others waiting until the mesh's timeout and then fails there with kRankLost: from inside the
// process it cannot be told from a rank that runs no backward at all.
//
// torch::autograd::grad goes around it: it returns this rank's own terms. Sparse gradients are an error (kNotSupported).
// Stage before: collective. Stage after: apply, which adds the parameters after it cut them.
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
  // `label`: what errors say of its collectives.
  explicit GradientSum(std::shared_ptr<BackwardEnd> end = std::make_shared<BackwardEnd>(),
                       std::string label = "the sum of the gradients of replicated parameters");
  ~GradientSum();
  GradientSum(const GradientSum&) = delete;
  GradientSum& operator=(const GradientSum&) = delete;

  // The gradient of `parameter` (a leaf) is summed over `group`; the order of the calls is the same on every rank. Adding
  // a parameter to several groups sums over one after the other. A group of one adds nothing.
  void Add(const at::Tensor& parameter, std::shared_ptr<AxisGroup> group);
  // Only elements [begin, begin + length) of `dim`: the part of a fused weight whose heads are replicated.
  void Add(const at::Tensor& parameter, std::shared_ptr<AxisGroup> group, int64_t dim, int64_t begin, int64_t length);

  // These parameters, each added to all of `groups` as a whole, are summed in buckets over them, after what else they are
  // summed over (which a bucket that is not `at_end` has none of). Once, after all calls of Add; the same on every rank.
  struct Bucket {
    std::vector<at::Tensor> parameters;  // of one dtype and device
    bool at_end = false;
  };
  void SetBuckets(const std::vector<Bucket>& buckets, std::vector<std::shared_ptr<AxisGroup>> groups);

  // The sum is multiplied by `factor` (1 over the ranks, for a mean) before it is added to .grad. After the parameter's
  // Adds; nothing for one that is not summed.
  void Scale(const at::Tensor& parameter, double factor);

  // For a parameter whose gradient autograd does not bring to it (fsdp makes it): before the parameter's Adds.
  void TakeByHand(const at::Tensor& parameter);
  // Whether it has been added to a group of more than one rank: only then may its gradient be handed over.
  bool Sums(const at::Tensor& parameter) const;
  // Its gradient of this backward, or a part of it; within the backward, at the latest in an action of the BackwardEnd
  // that was added before this sum's first Add.
  void Hand(const at::Tensor& parameter, at::Tensor gradient);

  // false: backwards add to a sum that waits, and .grad is left alone; the next backward under true brings all. The same
  // on every rank.
  void SetSums(bool sums);

  bool empty() const;

  // Call at the start of every outermost forward: finds parameters that were made trainable, or whose dtype changed
  // (which makes autograd forget who listens), since. Tens of nanoseconds a parameter.
  void Rearm();
  // Call with every output of an outermost forward: a backward through it takes part in the sum on this rank whatever
  // parameters it reaches.
  void Watch(const at::Tensor& output);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace moonshard
