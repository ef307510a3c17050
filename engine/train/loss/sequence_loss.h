// SequenceLoss: the cross entropy of logits whose tokens are shards of the sequence over a mesh axis (context
// parallelism), without a gather of the logits:
//
//   const TokenShards sequence = TokenShards::Of(applied);               // once, of an AppliedPlan
//   CrossEntropy(vocabulary, sequence, logits, targets).backward();      // logits [b, t, v], targets [b, T]
//
// Each rank computes the losses of its own tokens, and the sums of the ranks are added. A plan leaves the logits in
// shards with loss_parallel (stdlib/transformer.lua).
//
// Communication: beside what losses.h needs, one all-reduce of one number in forward and none in backward. Each rank
// computes the gradient of its own logits; the gradients of parameters are terms, which the plan sums over the axis.
// Stage before: losses.h. Stage after: a trainer.
#pragma once

#include <memory>

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

  // Returns the ranks of cp, in a group of its own, and the layout of the tokens over them in the plan; without a group
  // if the plan does not shard the sequence on cp. Call it on every rank.
  static TokenShards Of(const AppliedPlan& applied);
};

// Returns the cross entropy of all tokens, the same on every rank of `sequence`, which must have a group. `logits`
// [b, t, V]: of this rank's tokens, in the order of its shard. `targets` [b, T]: of all tokens, equal on every rank,
// which the ranks compare if the targets are in host memory. kMean divides the sum by the number of all targets that
// are not ignored; a rank may have none of them. Errors, as PlanError: those of CrossEntropy; kBadInput for logits of
// another number of tokens than this rank's; kNotSupported for kNone; kCollectiveMismatch for ranks with other targets.
at::Tensor CrossEntropy(const Vocabulary& vocabulary, const TokenShards& sequence, const ShardedLogits& logits,
                        const at::Tensor& targets, const CrossEntropyOptions& options = {});

}  // namespace moonshard
