// NextTokenLoss: how well the model predicts each row's next tokens, whatever the plan leaves of the logits on a rank, and
// without gathering them. The same number on every rank that shares the rows.
// Stage before: batches.h. Stage after: backward.
#pragma once

#include "dsl/embed/moonshard.h"
#include "dsl/program/train/batches.h"

namespace moonshard::train {

class NextTokenLoss {
 public:
  // `chunk` above 0: the logits are made so many tokens at a time, and again in backward. `net` and `model` outlive the
  // loss. Errors: kNotSupported for logits that lie otherwise than shard(-1) or replicate, and for a chunk where the logits
  // are more than a Linear of the hidden states, where that Linear's weight is not cut by rows, and where it is in a unit of
  // fsdp other than the root's. Under fsdp the root is gathered once for all chunks, and stays so until its backward ends.
  static Result<NextTokenLoss> Make(const CausalLm& net, const AppliedPlan& model, int64_t chunk);

  // A scalar with a gradient: the mean over the targets.
  at::Tensor Mean(const Batch& batch) const;
  // The sum over the targets, and how many there are.
  std::pair<double, int64_t> Sum(const Batch& batch) const;

  // Of the loss alone: the model's own are in AppliedPlan::counts.
  const CollectiveCounts& counts() const { return vocabulary_.group().counts(); }
  void ClearCounts() const { vocabulary_.group().ClearCounts(); }

 private:
  NextTokenLoss(const CausalLm& net, Vocabulary vocabulary, HeadOptions head)
      : net_(net), vocabulary_(std::move(vocabulary)), head_(std::move(head)) {}
  at::Tensor Loss(const Batch& batch, LossReduction reduction) const;

  const CausalLm& net_;
  Vocabulary vocabulary_;
  HeadOptions head_;  // a chunk of 0: the model's own head is used
};

}  // namespace moonshard::train
