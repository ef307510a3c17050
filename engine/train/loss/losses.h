// Losses on logits whose vocabulary is sharded over a mesh axis, without ever gathering them:
//
//   const auto ranks = AxisGroup::Make(mesh, MeshAxis::kTp);
//   const Vocabulary vocabulary = Vocabulary::Make(ranks, config.vocab_size).ValueOrThrow();
//   CrossEntropy(vocabulary, logits, targets).backward();                                    // logits [b, s, v]
//   CrossEntropy(vocabulary, ShardedLogits::OfHead(vocabulary, hidden, head->weight), targets).backward();
//
// Every function takes both forms of ShardedLogits: a tensor, or a head that is applied chunk by chunk.
//
// Communication: one all-gather forward of 3 to 4 numbers per token and rank (TopK: 2k), in one buffer for the call
// and all its chunks, and nothing backward; on an axis of one rank nothing at all. It is counted as other collectives
// are. (An all-gather of each rank's maximum, sum of exponentials and target logit, joined on every rank, does what a
// maximum all-reduce and a sum all-reduce would do in two steps: local_softmax.h has the algebra.) Checks between ranks
// are not counted.
//
// Layouts: logits are shard(-1); targets and everything that is returned are replicate, and so is the gradient that
// comes in. So each rank's gradient is that of its own columns, at the scale of the full loss.
//
// Logits may be double, float, bfloat16 or half. Results and all sums are double for double, else float; gradients
// have their input's dtype. A result has a gradient where gradients are on and an input needs one; a backward with
// create_graph is an error (kNotSupported).
//
// All throw PlanError on every rank: kBadInput (shapes, dtypes, targets outside the vocabulary), kCollectiveMismatch
// (ranks with other targets, shapes, options or shards), kRankLost.
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
  int64_t ignore_index = -100;  // targets of this value count as no token
  double label_smoothing = 0;   // in [0, 1]
  double z_loss = 0;            // at least 0
};

// For a token with logits z_1..z_V, target y and L = log sum_j exp(z_j):
//
//   (1 - e) (L - z_y) + e (L - sum_j z_j / V) + w L^2          e = label_smoothing, w = z_loss
//   d/dz_j = p_j (1 + 2 w L) - (1 - e) [j = y] - e / V         p_j = exp(z_j - L)
//
// (Cross entropy with smoothing: Szegedy et al. 2016, section 7, as in torch::nn::functional::cross_entropy; the term
// in L: Chowdhery et al. 2022, section 5; over shards: Shoeybi et al. 2019, section 3.)
//
// targets [...]: int64 or int32, the shape of the logits without the vocabulary. kMean divides the sum by the number of
// tokens that are not ignored (where that is none the value is NaN, as torch's, and the gradient 0); kNone gives [...]
// with 0 for ignored tokens. Next-token targets are best made by shifting the targets and ignoring the last one: a
// slice of the logits is copied.
at::Tensor CrossEntropy(const Vocabulary& vocabulary, const ShardedLogits& logits, const at::Tensor& targets,
                        const CrossEntropyOptions& options = {});

// log p_y = z_y - L of every token, [...]; 0 where the target is `ignore_index`.
//   d/dz_j = [j = y] - p_j
at::Tensor TokenLogProbs(const Vocabulary& vocabulary, const ShardedLogits& logits, const at::Tensor& targets,
                         int64_t ignore_index = -100);

// H = -sum_j p_j log p_j of every token, in nats, [...]. A logit of -inf adds nothing.
//   d/dz_j = -p_j (log p_j + H)
at::Tensor Entropy(const Vocabulary& vocabulary, const ShardedLogits& logits);

struct TopKResult {
  at::Tensor values;  // [..., k] in the logits' dtype, largest first
  at::Tensor ids;     // [..., k] int64, of the full vocabulary
};

// The k largest logits of every token, without a gradient. Which of equal logits is first is not specified, but it is
// the same on every rank. k is from 1 to the vocabulary's size.
TopKResult TopK(const Vocabulary& vocabulary, const ShardedLogits& logits, int64_t k);

}  // namespace moonshard
