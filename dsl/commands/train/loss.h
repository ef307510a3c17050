// BatchLoss: the loss of a batch. It is either the cross-entropy of the next tokens of each row, for logits that the
// plan leaves replicated or sharded, along the vocabulary or on cp along the sequence, without gathering them, or the
// loss that the model computes itself, of tokens or of examples. The result is the same on every rank that shares the
// rows. Stage before: batches.h. Stage after: backward.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "dsl/commands/train/batches.h"
#include "dsl/embed/moonshard.h"

namespace moonshard {

class BatchLoss {
 public:
  // The cross-entropy of the next tokens. `chunk` above 0: the logits are computed for this many tokens at a time, and
  // recomputed in the backward. `net` and `model` must outlive the loss. Errors: kNotSupported for logits in a layout
  // other than shard(-1) or replicate. With a chunk, kNotSupported also if the logits are not the output of a single
  // Linear, if the weight of that Linear is sharded along a dim other than 0, or if the weight is in an fsdp unit other
  // than the root unit. Under fsdp the parameters of the root unit are gathered once for all chunks, and stay full
  // until the root unit's backward ends.
  static Result<BatchLoss> NextTokens(const CausalLm& net, const AppliedPlan& model, int64_t chunk);
  // The model's own loss (CausalLm::own_loss), with the inputs as labels: the model shifts them itself, as models of
  // transformers do. `net` must outlive the loss. Errors: kNotSupported for a model without a loss of its own, and for
  // logits that leave sharded.
  static Result<BatchLoss> OfModel(const CausalLm& net, const AppliedPlan& model);
  // The model's own loss of examples, whose tensors are the inputs of the program by name. `net`: of a program, which
  // need not be a causal language model. `net` must outlive the loss. Errors: kNotSupported for a program that returns
  // no loss, and for logits that leave sharded.
  static Result<BatchLoss> OfExamples(const CausalLm& net, const AppliedPlan& model);

  // Returns the errors that a forward of these examples would have for their sizes, in the module's mode (training or
  // evaluation); none for tokens. The tensors may be on the meta device.
  Diagnostics Check(const Batch& batch) const;
  // A scalar with a gradient: the mean over the targets, or the model's own loss. Throws PlanError (kNotSupported) for
  // a loss of examples that is not one floating-point number.
  at::Tensor Mean(const Batch& batch) const;
  // The sum over the counted labels, and their number. Of a model's own loss: the loss times this number.
  std::pair<double, int64_t> Sum(const Batch& batch) const;

  // The weighted loss of the routers in the newest forward of Mean or Sum (RouterLosses::Loss), which neither contains:
  // it is not a mean over labels. nullopt: none. Collective.
  std::optional<at::Tensor> OfRouters() const { return net_.routers ? net_.routers->Loss() : std::nullopt; }

  // The collectives of these losses; those of the model are in AppliedPlan::counts.
  CollectiveCounts counts() const;
  void ClearCounts() const {
    if (vocabulary_) vocabulary_->group().ClearCounts();
    if (sequence_.group) sequence_.group->ClearCounts();
    if (net_.routers) net_.routers->ClearCounts();
  }

 private:
  BatchLoss(const CausalLm& net, std::optional<Vocabulary> vocabulary, HeadOptions head,
            std::shared_ptr<Program> by_name = nullptr, TokenShards sequence = {}, TokenShards own_inputs = {})
      : net_(net),
        vocabulary_(std::move(vocabulary)),
        head_(std::move(head)),
        by_name_(std::move(by_name)),
        sequence_(std::move(sequence)),
        own_inputs_(std::move(own_inputs)) {}
  at::Tensor Loss(const Batch& batch, LossReduction reduction) const;

  const CausalLm& net_;
  std::optional<Vocabulary> vocabulary_;  // none: the model's own loss
  HeadOptions head_;                      // with a chunk of 0 the model calls its head itself
  std::shared_ptr<Program> by_name_;      // of examples; else null
  TokenShards sequence_;                  // of cp, if a rank has the logits of its own tokens alone; else no group
  TokenShards own_inputs_;                // of cp, if the model takes this rank's own tokens of the rows; else no group
};

}  // namespace moonshard
