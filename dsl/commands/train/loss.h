// NextTokenLoss: the cross-entropy of the next tokens of each row, for logits in any layout that a plan leaves, without
// gathering them. The result is the same on every rank that shares the rows. Stage before: batches.h. Stage after:
// backward.
#pragma once

#include "dsl/commands/train/batches.h"
#include "dsl/embed/moonshard.h"

namespace moonshard {

class NextTokenLoss {
 public:
  // `chunk` above 0: the logits are computed for this many tokens at a time, and recomputed in the backward. `net` and
  // `model` outlive the loss. Errors: kNotSupported for logits in another layout than shard(-1) or replicate, and for a
  // chunk if the logits are more than a Linear of the hidden states, if the weight of that Linear is not sharded by
  // rows, or if it is in a unit of fsdp other than the root. Under fsdp the root is gathered once for all chunks, until
  // its backward ends.
  static Result<NextTokenLoss> Make(const CausalLm& net, const AppliedPlan& model, int64_t chunk);

  // A scalar with a gradient: the mean over the targets.
  at::Tensor Mean(const Batch& batch) const;
  // The sum over the targets, and their number.
  std::pair<double, int64_t> Sum(const Batch& batch) const;

  // Whether a rank has the logits of some of the vocabulary alone.
  // Of the loss alone: the model's own are in AppliedPlan::counts.
  const CollectiveCounts& counts() const { return vocabulary_.group().counts(); }
  void ClearCounts() const { vocabulary_.group().ClearCounts(); }

 private:
  NextTokenLoss(const CausalLm& net, Vocabulary vocabulary, HeadOptions head)
      : net_(net), vocabulary_(std::move(vocabulary)), head_(std::move(head)) {}
  at::Tensor Loss(const Batch& batch, LossReduction reduction) const;

  const CausalLm& net_;
  Vocabulary vocabulary_;
  HeadOptions head_;  // with a chunk of 0 the model's own head is used
};

}  // namespace moonshard
