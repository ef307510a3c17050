// The loss of all tokens is the sum over the ranks of the losses of their own: partial -> replicate, whose backward is
// the identity, since every rank starts its backward from the same value. The number of tokens that count must be that
// of all ranks: the mean of a rank's own tokens would weigh tokens by how many of their neighbours are ignored, and is
// not a number on a rank all of whose targets are ignored. Targets are shifted by their caller in the full sequence, so
// that the last token of a chunk has the first token of the next chunk as its target, whichever rank has that chunk.
#include "engine/train/loss/sequence_loss.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "engine/core/base/hash.h"
#include "engine/core/base/text.h"
#include "engine/layout/shards.h"
#include "engine/runtime/apply/applied_plan.h"
#include "engine/runtime/redistribute/redistribute.h"

namespace moonshard {
namespace {

Diagnostic BadTargets(const ShardedLogits& logits, const at::Tensor& targets, const std::string& required) {
  Diagnostic d = MakeDiagnostic(Finding::kBadInput, "the logits do not have the tokens of this rank's chunk");
  d.declared = "logits of " + ShapeToString(logits.tokens_shape()) + " tokens, targets " +
               (targets.defined() ? ShapeToString(targets.sizes()) : "that are undefined");
  d.required = required;
  return d;
}

// Equal on every rank whose logits fit: the targets, by their values where those are cheap to read. A rank whose logits
// do not fit says so, and all ranks throw.
std::string SignatureOf(const at::Tensor& targets, const std::string& tokens) {
  std::string out = "targets ";
  if (!targets.defined()) return out + "that are undefined";
  out += ShapeToString(targets.sizes());
  if (targets.is_cpu()) {
    const at::Tensor full = targets.contiguous();
    out += ", hash " + std::to_string(HashOf({static_cast<const char*>(full.const_data_ptr()), full.nbytes()}));
  }
  return out + tokens;
}

}  // namespace

TokenShards TokenShards::Of(const AppliedPlan& applied) {
  if (!applied.plan().context_parallel) return {};
  return {AxisGroup::Make(applied.mesh(), MeshAxis::kCp), applied.plan().own_tokens()};
}

at::Tensor CrossEntropy(const Vocabulary& vocabulary, const TokenShards& shards, const ShardedLogits& logits,
                        const at::Tensor& targets, const CrossEntropyOptions& options) {
  const std::shared_ptr<AxisGroup>& sequence = shards.group;
  if (options.reduction == LossReduction::kNone) {
    Diagnostic d = MakeDiagnostic(Finding::kNotSupported, "the losses of single tokens are not gathered over ranks");
    d.path = vocabulary.label().text();
    d.declared = "LossReduction::kNone of logits whose tokens are shards";
    d.required = "kMean or kSum";
    throw PlanError({std::move(d)});
  }
  const bool shaped = targets.defined() && targets.dim() == 2 && logits.tokens_shape().size() == 2;
  std::vector<at::Tensor> of_runs;
  int64_t length = 0;
  if (shaped) {
    of_runs = {targets.narrow(1, 0, 0)};
    const DimShards tokens = DimShards::Make(shards.layout, targets.size(1), sequence->size()).ValueOrThrow();
    for (const Interval& run : tokens.of(sequence->rank())) of_runs.push_back(targets.narrow(1, run.begin, run.length));
    length = tokens.length(sequence->rank());
  }
  const bool fits = shaped && logits.tokens_shape()[0] == targets.size(0) && logits.tokens_shape()[1] == length;
  const CollectiveLabel label("the targets of '" + vocabulary.label().text() + "'");
  const CollectiveLabel signature(
      SignatureOf(targets, fits ? "" : ", logits of " + ShapeToString(logits.tokens_shape()) + " tokens"));
  sequence->StartCheckInputs(signature, label);
  sequence->FinishCheck();
  if (!fits) {
    throw PlanError({BadTargets(
        logits, targets,
        shaped ? "logits of [" + std::to_string(targets.size(0)) + ", " + std::to_string(length) + "] tokens"
               : "logits [b, t, V] of this rank's tokens, targets [b, T] of all tokens")});
  }
  CrossEntropyOptions own = options;
  own.reduction = LossReduction::kSum;
  const at::Tensor term = CrossEntropy(vocabulary, logits, at::cat(of_runs, 1), own);
  const TensorRedistribution sum =
      TensorRedistribution::Make(Layout::Partial(), Layout::Replicate(), sequence, {-1, -1, label.text(), 1})
          .ValueOrThrow();
  at::Tensor total = sum(term.unsqueeze(0)).squeeze(0);
  if (options.reduction == LossReduction::kSum) return total;
  const at::Tensor counted = targets.ne(options.ignore_index).sum();
  return total / counted.to(total.device(), total.scalar_type());
}

}  // namespace moonshard
