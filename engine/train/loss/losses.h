// Losses: losses on logits whose vocabulary dim is sharded over a mesh axis, without an all-gather of the logits:
//
//   const auto ranks = AxisGroup::Make(mesh, MeshAxis::kTp);
//   const Vocabulary vocabulary = Vocabulary::Make(ranks, config.vocab_size).ValueOrThrow();
//   CrossEntropy(vocabulary, logits, targets).backward();                                    // logits [b, s, v]
//   CrossEntropy(vocabulary, ShardedLogits::OfHead(vocabulary, hidden, head->weight), targets).backward();
//
// Every function accepts both forms of ShardedLogits: a tensor, or a head that is applied chunk by chunk.
//
// Communication: one all-gather in forward of 3 to 4 numbers per token and rank (TopK: 2k numbers), in one buffer for
// all chunks of the call, and none in backward. On an axis of one rank there is no communication. The all-gather is
// counted like other collectives; checks between ranks are not counted. The all-gather of each rank's maximum, sum of
// exponentials and target logit replaces two all-reduces, first of the maxima and then of the sums: every rank combines
// the gathered numbers by the formulas of local_softmax.h.
//
// Layouts: logits are shard(-1); targets, results and the gradients of the results are replicate. Each rank computes
// the gradient of the full loss with respect to its own columns.
//
// Logits may be double, float, bfloat16 or half. Results and all sums are double for double logits, else float; a
// gradient has the dtype of its input. A result requires grad if grad mode is enabled and an input requires grad; a
// backward with create_graph is an error (kNotSupported).
//
// All functions throw PlanError on every rank: kBadInput (shapes, dtypes, targets outside the vocabulary),
// kCollectiveMismatch (ranks with different targets, shapes, options or shards), kRankLost.
// Stage before: sharded_logits.h, vocabulary.h. Stage after: a trainer.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "engine/train/loss/sharded_logits.h"
#include "engine/train/loss/vocabulary.h"

namespace moonshard {

enum class LossReduction : uint8_t { kMean, kSum, kNone };

struct CrossEntropyOptions {
  LossReduction reduction = LossReduction::kMean;
  int64_t ignore_index = -100;  // targets with this value are ignored
  double label_smoothing = 0;   // in [0, 1]
  double z_loss = 0;            // at least 0
};

// Returns the cross entropy; for a token with logits z_1..z_V, target y and L = log sum_j exp(z_j):
//
//   (1 - e) (L - z_y) + e (L - sum_j z_j / V) + w L^2          e = label_smoothing, w = z_loss
//   d/dz_j = p_j (1 + 2 w L) - (1 - e) [j = y] - e / V         p_j = exp(z_j - L)
//
// (Cross entropy with smoothing: Szegedy et al. 2016, section 7, as in torch::nn::functional::cross_entropy; the term
// in L: Chowdhery et al. 2022, section 5; over shards: Shoeybi et al. 2019, section 3.)
//
// `targets` [...] is int64 or int32 and has the shape of the logits without the vocabulary dim; it is on the device of
// the logits or in host memory. The check of targets on a GPU (VocabularyOptions::check_targets) copies them to the
// host, which waits for the GPU; targets in host memory need no wait. kMean divides the sum
// by the number of tokens that are not ignored (if all tokens are ignored, the value is NaN, as in torch, and the
// gradient is 0); kNone returns [...] with 0 for ignored tokens. For next-token prediction, shift the targets and
// ignore the last target; do not slice the logits, because a slice of them is copied.
at::Tensor CrossEntropy(const Vocabulary& vocabulary, const ShardedLogits& logits, const at::Tensor& targets,
                        const CrossEntropyOptions& options = {});

// Returns log p_y = z_y - L of every token, [...]; 0 for a token whose target is `ignore_index`.
//   d/dz_j = [j = y] - p_j
at::Tensor TokenLogProbs(const Vocabulary& vocabulary, const ShardedLogits& logits, const at::Tensor& targets,
                         int64_t ignore_index = -100);

// Returns H = -sum_j p_j log p_j of every token, in nats, [...]. A logit of -inf adds 0.
//   d/dz_j = -p_j (log p_j + H)
at::Tensor Entropy(const Vocabulary& vocabulary, const ShardedLogits& logits);

struct TopKResult {
  at::Tensor values;  // [..., k] in the logits' dtype, largest first
  at::Tensor ids;     // [..., k] int64, of the full vocabulary
};

// Returns the k largest logits of every token, without a gradient. The order of equal logits is not specified, but it
// is the same on every rank. k is from 1 to vocabulary.size().
TopKResult TopK(const Vocabulary& vocabulary, const ShardedLogits& logits, int64_t k);

}  // namespace moonshard
