// SequenceLoss: the cross entropy of logits whose tokens are shards of the sequence over a mesh axis (context
// parallelism), without a gather of the logits:
//
//   const auto sequence = AxisGroup::Make(mesh, MeshAxis::kCp);
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

#include "engine/runtime/collective/axis_group.h"
#include "engine/train/loss/losses.h"

namespace moonshard {

// Returns the cross entropy of all tokens, the same on every rank of `sequence`. `logits` [b, t, V]: of this rank's
// tokens, which are those of torch.chunk along dim 1. `targets` [b, T]: of all tokens, equal on every rank, which the
// ranks compare if the targets are in host memory. kMean divides the sum by the number of all targets that are not
// ignored; a rank may have none of them. Errors, as PlanError: those of CrossEntropy; kBadInput for logits of another
// number of tokens than this rank's; kNotSupported for kNone; kCollectiveMismatch for ranks with other targets.
at::Tensor CrossEntropy(const Vocabulary& vocabulary, const std::shared_ptr<AxisGroup>& sequence,
                        const ShardedLogits& logits, const at::Tensor& targets,
                        const CrossEntropyOptions& options = {});

}  // namespace moonshard
