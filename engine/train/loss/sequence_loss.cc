// The loss of all tokens is the sum over the ranks of the losses of their own: partial -> replicate, whose backward is
// the identity, since every rank starts its backward from the same value. The number of tokens that count must be that
// of all ranks: the mean of a rank's own tokens would weigh tokens by how many of their neighbours are ignored, and is
// not a number on a rank all of whose targets are ignored. Targets are shifted by their caller in the full sequence, so
// that the last token of a chunk has the first token of the next chunk as its target, whichever rank has that chunk.
#include "engine/train/loss/sequence_loss.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "engine/core/base/check.h"
#include "engine/core/base/hash.h"
#include "engine/core/base/text.h"
#include "engine/layout/shards.h"
#include "engine/runtime/apply/applied_plan.h"
#include "engine/runtime/apply/axis_inputs.h"
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

std::string ShapeOf(const at::Tensor& tensor) {
  if (!tensor.defined()) return "that are undefined";
  return std::string(c10::toString(tensor.scalar_type())) + " " + ShapeToString(tensor.sizes());
}

// [runs, planes, b] of this rank -> [ranks * runs, planes, b].
at::Tensor FirstsOfAll(AxisGroup& group, const at::Tensor& mine, const CollectiveLabel& label) {
  const at::NoGradGuard no_grad;
  const at::Tensor shard = mine.to(group.device()).contiguous();
  std::vector<int64_t> shape = shard.sizes().vec();
  shape[0] *= group.size();
  return group.AllGather(shard,
                         {Direction::kForward, &label, shape, static_cast<int64_t>(shard.nbytes()) * group.size()});
}

bool AllIds(const at::Tensor& targets, int64_t vocabulary, int64_t ignore_index) {
  return targets.ge(0).logical_and(targets.lt(vocabulary)).logical_or(targets.eq(ignore_index)).all().item<bool>();
}

// What must be the same on all ranks.
std::string TextOf(const CrossEntropyOptions& options) {
  return "reduction " + std::to_string(static_cast<int>(options.reduction)) + ", ignore_index " +
         std::to_string(options.ignore_index);
}

}  // namespace

TokenShards TokenShards::Of(const AppliedPlan& applied) {
  if (!applied.plan().context_parallel) return {};
  return {AxisGroup::Make(applied.mesh(), MeshAxis::kCp), applied.plan().own_tokens(), applied.mesh().recording()};
}

std::vector<Interval> TokenShards::Runs(int64_t length) const {
  if (!group) return {{0, length}};
  return DimShards::Make(layout, length, group->size()).ValueOrThrow().of(group->rank());
}

at::Tensor TokenShards::Take(const at::Tensor& full) const {
  if (!group) return full;
  std::vector<at::Tensor> runs;
  for (const Interval& run : Runs(full.size(1))) runs.push_back(full.narrow(1, run.begin, run.length));
  if (runs.empty()) runs.push_back(full.narrow(1, 0, 0));
  return runs.size() == 1 ? runs.front() : at::cat(runs, 1);
}

// Within a run of neighbours the shift is local. What is behind a run is the first token of the run that begins where
// this one ends, on whichever rank: in zigzag the early chunk of rank n - 1 is followed by its own late chunk, and the
// runs of one rank are then one. So every rank sends the first label (and document) of each of its runs to all.
OwnTargets ShiftTargets(const TokenShards& sequence, const at::Tensor& labels,
                        const std::optional<at::Tensor>& document_ids, int64_t ignore_index) {
  const CollectiveLabel label("the shift of targets");
  const auto integers = [](const at::Tensor& tensor) {
    return tensor.defined() && tensor.dim() == 2 && at::isIntegralType(tensor.scalar_type(), /*includeBool=*/false);
  };
  const bool fits =
      integers(labels) && (!document_ids || (integers(*document_ids) && document_ids->size(1) == labels.size(1) &&
                                             (document_ids->size(0) == 1 || document_ids->size(0) == labels.size(0))));
  const std::string shapes =
      "labels " + ShapeOf(labels) + (document_ids ? ", documents " + ShapeOf(*document_ids) : "");
  if (sequence.group) {
    const std::string rows =
        fits ? std::to_string(labels.size(0)) + " rows of labels" + (document_ids ? " with documents" : "") : shapes;
    sequence.group->StartCheckInputs(CollectiveLabel(rows), label);
    sequence.group->FinishCheck();
  }
  if (!fits) {
    Diagnostic d = MakeDiagnostic(Finding::kBadInput, "labels and documents do not fit this rank's own tokens");
    d.path = label.text();
    d.declared = shapes;
    d.required = "labels [b, t] and documents [b or 1, t] of integers";
    throw PlanError({std::move(d)});
  }
  // Labels, and in a second plane documents.
  std::vector<at::Tensor> planes = {labels.to(at::kLong)};
  if (document_ids) planes.push_back(document_ids->to(labels.device(), at::kLong).expand_as(labels));
  const at::Tensor all = at::stack(planes);  // [planes, b, t]
  const int64_t own = labels.size(1);
  const int64_t length =
      sequence.group ? SequenceLength(*sequence.group, sequence.layout, own, label, sequence.recording) : own;
  const std::vector<Interval> runs = sequence.Runs(length);
  const int64_t most = sequence.layout.zigzag ? 2 : 1;  // runs of a rank
  at::Tensor firsts;                                    // [ranks * most, planes, b]
  if (sequence.group) {
    std::vector<at::Tensor> mine;
    int64_t first = 0;
    for (const Interval& run : runs) {
      mine.push_back(all.select(2, first));
      first += run.length;
    }
    while (static_cast<int64_t>(mine.size()) < most)
      mine.push_back(at::zeros({all.size(0), all.size(1)}, all.options()));
    firsts = FirstsOfAll(*sequence.group, at::stack(mine), label).to(labels.device());
  }
  const auto nothing = [&] { return at::full({all.size(0), all.size(1), 1}, ignore_index, all.options()); };
  const auto behind = [&](int64_t end) {
    if (end == length) return nothing();
    for (int64_t rank = 0; rank < sequence.group->size(); ++rank) {
      const DimShards shards = DimShards::Make(sequence.layout, length, sequence.group->size()).ValueOrThrow();
      const std::vector<Interval>& theirs = shards.of(rank);
      const auto found = std::ranges::find(theirs, end, &Interval::begin);
      if (found != theirs.end()) return firsts.select(0, rank * most + (found - theirs.begin())).unsqueeze(2);
    }
    Check(false, "tokens that no rank has");
    return nothing();
  };
  std::vector<at::Tensor> targets = {labels.narrow(1, 0, 0).to(at::kLong)};
  int64_t first = 0;
  for (const Interval& run : runs) {
    const at::Tensor here = all.narrow(2, first, run.length);
    const at::Tensor next = at::cat({here.slice(2, 1), behind(run.begin + run.length)}, 2);
    targets.push_back(document_ids ? next[0].masked_fill(next[1].ne(here[1]), ignore_index) : next[0]);
    first += run.length;
  }
  return {at::cat(targets, 1)};
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

// The count of a rank is in the all-reduce of its loss, in float64, in which it is exact.
at::Tensor CrossEntropy(const Vocabulary& vocabulary, const TokenShards& sequence, const ShardedLogits& logits,
                        const OwnTargets& own_targets, const CrossEntropyOptions& options) {
  const at::Tensor& targets = own_targets.targets;
  if (!sequence.group) return CrossEntropy(vocabulary, logits, targets, options);
  // A target that is no id is an error of one rank alone, which the others must hear of before they wait for its loss.
  const bool shaped = targets.defined() && targets.dim() == 2 && logits.tokens_shape() == targets.sizes() &&
                      at::isIntegralType(targets.scalar_type(), /*includeBool=*/false);
  const bool fits = shaped && (!targets.is_cpu() || AllIds(targets, vocabulary.size(), options.ignore_index));
  const CollectiveLabel label("the targets of '" + vocabulary.label().text() + "'");
  const std::string rows = fits ? std::to_string(targets.size(0)) + " rows of own targets, " + TextOf(options)
                                : "own targets that do not fit";
  sequence.group->StartCheckInputs(CollectiveLabel(rows), label);
  sequence.group->FinishCheck();
  if (!fits) {
    throw PlanError({BadTargets(logits, targets,
                                shaped ? "targets from 0 to " + std::to_string(vocabulary.size() - 1) +
                                             ", or ignore_index (" + std::to_string(options.ignore_index) + ")"
                                       : "logits [b, t, V] and integer targets [b, t] of this rank's tokens")});
  }
  if (options.reduction == LossReduction::kNone) return CrossEntropy(vocabulary, logits, targets, options);
  CrossEntropyOptions sum = options;
  sum.reduction = LossReduction::kSum;
  const at::Tensor term = CrossEntropy(vocabulary, logits, targets, sum);
  const TensorRedistribution over_ranks =
      TensorRedistribution::Make(Layout::Partial(), Layout::Replicate(), sequence.group, {-1, -1, label.text(), 1})
          .ValueOrThrow();
  if (options.reduction == LossReduction::kSum) return over_ranks(term.unsqueeze(0)).squeeze(0);
  const at::Tensor counted = targets.ne(options.ignore_index).sum().to(term.device(), at::kDouble);
  const at::Tensor both = over_ranks(at::stack({term.to(at::kDouble), counted}));
  return (both[0] / both[1]).to(term.scalar_type());
}

}  // namespace moonshard
