// SequenceLoss: the cross entropy of logits whose tokens are shards of the sequence over a mesh axis (context
// parallelism), without a gather of the logits:
//
//   const TokenShards sequence = TokenShards::Of(applied);               // once, of an AppliedPlan
//   CrossEntropy(vocabulary, sequence, logits, targets).backward();      // logits [b, t, v], targets [b, T]
//
// Each rank computes the losses of its own tokens, and the sums of the ranks are added. A plan leaves the logits in
// shards with loss_parallel (stdlib/transformer.lua). With inputs = "own" a rank may have nothing but its own tokens,
// labels too, which a data loader takes from full rows or reads so:
//
//   const at::Tensor ids = sequence.Take(row_ids), labels = sequence.Take(row_labels);   // [b, T] -> [b, t]
//   const OwnTargets targets = ShiftTargets(sequence, labels);
//   CrossEntropy(vocabulary, sequence, net->forward(ids), targets).backward();
//
// Communication: beside what losses.h needs, one all-reduce of one number in forward (of two for the mean of
// OwnTargets) and none in backward; ShiftTargets has an exchange of lengths on the CPU and one all-gather. Each rank
// computes the gradient of its own logits; the gradients of parameters are terms, which the plan sums over the axis.
// Stage before: losses.h. Stage after: a trainer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/layout/layout.h"
#include "engine/runtime/collective/axis_group.h"
#include "engine/train/loss/losses.h"

namespace moonshard {

class AppliedPlan;

// The ranks that share the tokens, and the layout of the tokens over them: shard(1) or shard(1,zigzag).
struct TokenShards {
  std::shared_ptr<AxisGroup> group;
  Layout layout;
  bool recording = false;  // the ranks have no peers (DeviceMesh::Recording)

  // Returns the ranks of cp, in a group of its own, and the layout of the tokens over them in the plan; without a group
  // if the plan does not shard the sequence on cp. Call it on every rank.
  static TokenShards Of(const AppliedPlan& applied);

  // Returns the positions of this rank's own tokens in a sequence of `length` tokens, in the order of its tensors: no,
  // one or two runs, [0, length) without a group. Of 8 tokens on 2 ranks, rank 0 has {0, 4} in shard(1), and {0, 2} and
  // {6, 2} in shard(1,zigzag).
  std::vector<Interval> Runs(int64_t length) const;
  // Returns this rank's own tokens of `full` [B, T, ...]: [B, t, ...], the tensor itself without a group.
  at::Tensor Take(const at::Tensor& full) const;
};

// The targets of this rank's own tokens, int64 [b, t]: of each token the one that it predicts.
struct OwnTargets {
  at::Tensor targets;
};

// Returns the targets for labels [b, t] of this rank's own tokens, int64 or int32: of each token the label of the token
// behind it in the full sequence, which another rank may have, and `ignore_index` of the last token of the sequence.
// With `document_ids`, integers [b or 1, t], also `ignore_index` of the last token of a document (documents.h). The
// result is on the device of the labels; on a GPU whose labels are in host memory, the copy back waits for the GPU.
// Collective over the ranks of `sequence`: one all-gather of b numbers for each chunk of a rank, twice as many with
// documents. Errors, as PlanError: kBadInput for labels or documents of another shape or dtype; kCollectiveMismatch for
// ranks with another batch, or with other numbers of tokens than the layout gives a sequence.
OwnTargets ShiftTargets(const TokenShards& sequence, const at::Tensor& labels,
                        const std::optional<at::Tensor>& document_ids = std::nullopt, int64_t ignore_index = -100);

// Returns the cross entropy of all tokens, the same on every rank of `sequence`, which must have a group. `logits`
// [b, t, V]: of this rank's tokens, in the order of its shard. `targets` [b, T]: of all tokens, equal on every rank,
// which the ranks compare if the targets are in host memory. kMean divides the sum by the number of all targets that
// are not ignored; a rank may have none of them. Errors, as PlanError: those of CrossEntropy; kBadInput for logits of
// another number of tokens than this rank's; kNotSupported for kNone; kCollectiveMismatch for ranks with other targets.
at::Tensor CrossEntropy(const Vocabulary& vocabulary, const TokenShards& sequence, const ShardedLogits& logits,
                        const at::Tensor& targets, const CrossEntropyOptions& options = {});
// The same for targets of this rank's own tokens; the number of targets that are not ignored is summed with the losses.
// kNone returns the losses of this rank's own tokens, [b, t]. Without a group, this is CrossEntropy of losses.h.
// Errors, as PlanError: those of CrossEntropy; kBadInput for targets of another shape than the logits;
// kCollectiveMismatch for ranks with another batch.
at::Tensor CrossEntropy(const Vocabulary& vocabulary, const TokenShards& sequence, const ShardedLogits& logits,
                        const OwnTargets& targets, const CrossEntropyOptions& options = {});

}  // namespace moonshard
