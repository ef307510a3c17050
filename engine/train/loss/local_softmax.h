// The local part of a softmax over a vocabulary in shards: what one rank computes of its columns, how the ranks'
// results join, and the gradient of its columns. Plain tensors, no communication, no autograd. Rows are tokens;
// everything but the logits is in the accumulation dtype: float for half-precision and float logits, double for double.
//
// A rank's shard z_1..z_v of one row is described by (Milakov and Gimelshein 2018, "Online normalizer calculation for
// softmax", whose pairs join in any order):
//
//   m = max z              s = sum exp(z - m)              -inf and 0 where there are no columns
//   t = z[target]          where the target is one of them, else 0
//   d = sum (z - m)        for label smoothing
//   u = sum exp(z - m) (z - m)                             for the entropy
//
// and shards a, b, ... of the full row join, with M = max m_a, w_a = exp(m_a - M), as
//
//   log Z = log sum w_a s_a       (the log-sum-exp of the row is M + log Z; kept apart, because for large logits the
//                                  difference z - M is exact and z - (M + log Z) is not)
//   t = sum t_a           D = sum d_a + v_a (m_a - M)           U = sum w_a (u_a + s_a (m_a - M))
//
// An m of -inf (a shard without columns, or with all of them at -inf) enters differences as 0, so that exp(-inf) is 0
// and not NaN. A row that is -inf everywhere, or holds +inf or NaN, gives NaN, as torch's log_softmax does.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "engine/train/loss/vocabulary.h"

namespace moonshard {

// Where the targets are in this rank's columns.
struct TargetColumns {
  at::Tensor column;  // [tokens] int64: the local column, 0 where another rank holds the target
  at::Tensor mine;    // [tokens] bool

  // `targets` is [tokens]. Ids outside the vocabulary belong to no rank.
  static TargetColumns Of(const at::Tensor& targets, const Interval& shard);
  TargetColumns Narrow(int64_t begin, int64_t length) const;
  bool defined() const { return column.defined(); }
};

// Which statistics a loss needs besides m and s.
struct Wanted {
  bool target = false;
  bool shifted_sum = false;
  bool moment = false;
  int64_t count() const { return 2 + int64_t{target} + int64_t{shifted_sum} + int64_t{moment}; }
};

// A row of the full vocabulary, each [tokens]; those not wanted are undefined.
struct RowStatistics {
  at::Tensor max;          // M, 0 for -inf
  at::Tensor log_sum;      // log Z
  at::Tensor target;       // t
  at::Tensor shifted_sum;  // D
  at::Tensor moment;       // U
};

// The accumulation dtype for logits of `dtype`.
at::ScalarType AccumulationType(at::ScalarType dtype);

// Fills `out` [wanted.count(), tokens] from this rank's `logits` [tokens, v]. Temporaries are a block of rows at a
// time.
void LocalStatistics(const at::Tensor& logits, const TargetColumns& targets, Wanted wanted, const at::Tensor& out);

// The ranks' statistics [ranks, wanted.count(), tokens], in rank order, as one.
RowStatistics JoinStatistics(const at::Tensor& gathered, const Vocabulary& vocabulary, Wanted wanted);

// The gradient of every loss here, in a row with probabilities p = exp(z - M - log Z):
//
//   dz_j = p_j (probability + log_probability log p_j) - target [j is the target] - constant
//
// each coefficient [tokens]; undefined is 0 (probability always is defined).
struct GradientCoefficients {
  at::Tensor probability;
  at::Tensor log_probability;
  at::Tensor target;
  at::Tensor constant;

  GradientCoefficients Narrow(int64_t begin, int64_t length) const;
};

// Writes the gradient of `logits` [tokens, v] into `out` (as large; may be `logits` itself).
void LocalGradient(const at::Tensor& logits, const at::Tensor& max, const at::Tensor& log_sum,
                   const TargetColumns& targets, const GradientCoefficients& coefficients, const at::Tensor& out);

}  // namespace moonshard
