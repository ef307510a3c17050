// NextTokenLoss: the cross-entropy of the next tokens of each row, for logits that the plan leaves replicated or
// sharded along the vocabulary, without gathering them. The result is the same on every rank that shares the rows.
// Stage before: batches.h. Stage after: backward.
#pragma once

#include "dsl/commands/train/batches.h"
#include "dsl/embed/moonshard.h"

namespace moonshard {

class NextTokenLoss {
 public:
  // `chunk` above 0: the logits are computed for this many tokens at a time, and recomputed in the backward. `net` and
  // `model` must outlive the loss. Errors: kNotSupported for logits in a layout other than shard(-1) or replicate. With
  // a chunk, kNotSupported also if the logits are not the output of a single Linear, if the weight of that Linear is
  // sharded along a dim other than 0, or if the weight is in an fsdp unit other than the root unit. Under fsdp the
  // parameters of the root unit are gathered once for all chunks, and stay full until the root unit's backward ends.
  static Result<NextTokenLoss> Make(const CausalLm& net, const AppliedPlan& model, int64_t chunk);

  // A scalar with a gradient: the mean over the targets.
  at::Tensor Mean(const Batch& batch) const;
  // The sum over the targets, and their number.
  std::pair<double, int64_t> Sum(const Batch& batch) const;

  // The collectives of the loss alone; those of the model are in AppliedPlan::counts.
  const CollectiveCounts& counts() const { return vocabulary_.group().counts(); }
  void ClearCounts() const { vocabulary_.group().ClearCounts(); }

 private:
  NextTokenLoss(const CausalLm& net, Vocabulary vocabulary, HeadOptions head)
      : net_(net), vocabulary_(std::move(vocabulary)), head_(std::move(head)) {}
  at::Tensor Loss(const Batch& batch, LossReduction reduction) const;

  const CausalLm& net_;
  Vocabulary vocabulary_;
  HeadOptions head_;  // with a chunk of 0 the model calls its head itself
};

}  // namespace moonshard
