// LocalSoftmax: the local part of a softmax over a sharded vocabulary: the statistics of a rank's columns, the
// combination of the ranks' statistics, and the gradient of a rank's columns. The functions work on plain tensors,
// without communication and without autograd. Rows are tokens; all tensors except the logits have the accumulation
// dtype: float for half-precision and float logits, double for double.
//
// The statistics of a rank's shard z_1..z_v of one row are (Milakov and Gimelshein 2018, "Online normalizer calculation
// for softmax", whose pairs can be combined in any order):
//
//   m = max z              s = sum exp(z - m)              -inf and 0 without columns
//   t = z[target]          if the target is one of these columns, else 0
//   d = sum (z - m)        for label smoothing
//   u = sum exp(z - m) (z - m)                             for the entropy
//
// and the statistics of the full row follow from those of its shards a, b, ..., with M = max m_a, w_a = exp(m_a - M):
//
//   log Z = log sum w_a s_a       (the log-sum-exp of the row is M + log Z; kept apart, because for large logits the
//                                  difference z - M is exact and z - (M + log Z) is not)
//   t = sum t_a           D = sum d_a + v_a (m_a - M)           U = sum w_a (u_a + s_a (m_a - M))
//
// In differences, 0 replaces an m of -inf (a shard without columns, or with only -inf), so that the result is exp(-inf)
// = 0 and not NaN. A row with only -inf, or with +inf or NaN, gives NaN, as torch's log_softmax does.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "engine/train/loss/vocabulary.h"

namespace moonshard {

// The positions of the targets in this rank's columns.
struct TargetColumns {
  at::Tensor column;  // [tokens] int64: the local column; 0 if another rank has the target
  at::Tensor mine;    // [tokens] bool: this rank has the target

  // `targets` is [tokens]. An id outside the vocabulary belongs to no rank.
  static TargetColumns Of(const at::Tensor& targets, const Interval& shard);
  TargetColumns Narrow(int64_t begin, int64_t length) const;
  bool defined() const { return column.defined(); }
};

// The statistics that a loss needs besides m and s.
struct Wanted {
  bool target = false;
  bool shifted_sum = false;
  bool moment = false;
  int64_t count() const { return 2 + int64_t{target} + int64_t{shifted_sum} + int64_t{moment}; }
};

// The statistics of the full rows, each [tokens]; a statistic that is not wanted is undefined.
struct RowStatistics {
  at::Tensor max;          // M; 0 if M is -inf
  at::Tensor log_sum;      // log Z
  at::Tensor target;       // t
  at::Tensor shifted_sum;  // D
  at::Tensor moment;       // U
};

// Returns the accumulation dtype for logits of `dtype`.
at::ScalarType AccumulationType(at::ScalarType dtype);

// Writes the statistics of this rank's `logits` [tokens, v] to `out` [wanted.count(), tokens], in the order m, s, t, d,
// u without those that are not wanted. Temporaries hold one block of rows at a time.
void LocalStatistics(const at::Tensor& logits, const TargetColumns& targets, Wanted wanted, const at::Tensor& out);

// Returns the statistics of the full rows from those of all ranks: `gathered` is [ranks, wanted.count(), tokens] in
// rank order.
RowStatistics JoinStatistics(const at::Tensor& gathered, const Vocabulary& vocabulary, Wanted wanted);

// The coefficients of the gradient of a loss, in a row with probabilities p = exp(z - M - log Z):
//
//   dz_j = p_j (probability + log_probability log p_j) - target [j is the target] - constant
//
// Each coefficient is [tokens]; an undefined coefficient is 0 (`probability` is always defined).
struct GradientCoefficients {
  at::Tensor probability;
  at::Tensor log_probability;
  at::Tensor target;
  at::Tensor constant;

  GradientCoefficients Narrow(int64_t begin, int64_t length) const;
};

// Writes the gradient of `logits` [tokens, v] into `out`, which has the same shape and may be `logits` itself.
void LocalGradient(const at::Tensor& logits, const at::Tensor& max, const at::Tensor& log_sum,
                   const TargetColumns& targets, const GradientCoefficients& coefficients, const at::Tensor& out);

}  // namespace moonshard
