// Two passes over the logits, forward and backward, each a block of rows at a time, so that the float copy of
// half-precision logits and the exponentials stay in cache: for a vocabulary of 128,000 the logits of one sequence are
// the largest tensor of the step, and a temporary of their size would double it.
//
// Every rank subtracts its own maximum, never a common one. A common maximum would cost an all-reduce before the sums,
// and JoinStatistics can rescale the sums afterwards: s_a exp(m_a - M) is exact up to rounding. The rescaled value
// underflows to 0 only where the rank's columns contribute nothing to the row in the accumulation dtype.
#include "engine/train/loss/local_softmax.h"

#include <algorithm>
#include <limits>
#include <vector>

#include <ATen/ATen.h>

#include "engine/core/base/check.h"
#include "engine/train/loss/local_kernels.h"

namespace moonshard {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Rows whose temporaries stay in a core's cache, or on a device large enough to be worth a launch.
int64_t RowsAtOnce(const at::Tensor& logits) {
  const int64_t elements = logits.is_cpu() ? int64_t{1} << 17 : int64_t{1} << 24;
  return std::max<int64_t>(1, elements / std::max<int64_t>(1, logits.size(1)));
}

template <class Body>
void ForEachBlock(const at::Tensor& logits, Body&& body) {
  const int64_t step = RowsAtOnce(logits);
  for (int64_t begin = 0; begin < logits.size(0); begin += step) {
    body(begin, std::min(step, logits.size(0) - begin));
  }
}

// -inf as 0: what differences are taken from.
at::Tensor Finite(const at::Tensor& max) { return max.masked_fill(max == -kInfinity, 0); }

// p log p with 0 log 0 = 0.
at::Tensor TimesLog(const at::Tensor& p, const at::Tensor& log_p) { return (p * log_p).masked_fill_(p == 0, 0); }

at::Tensor NarrowIfDefined(const at::Tensor& tensor, int64_t begin, int64_t length) {
  return tensor.defined() ? tensor.narrow(0, begin, length) : tensor;
}

}  // namespace

TargetColumns TargetColumns::Of(const at::Tensor& targets, const Interval& shard) {
  const at::Tensor column = targets.to(at::kLong) - shard.begin;
  const at::Tensor mine = column.ge(0).logical_and_(column.lt(shard.length));
  return {column.masked_fill(mine.logical_not(), 0), mine};
}

TargetColumns TargetColumns::Narrow(int64_t begin, int64_t length) const {
  return {NarrowIfDefined(column, begin, length), NarrowIfDefined(mine, begin, length)};
}

GradientCoefficients GradientCoefficients::Narrow(int64_t begin, int64_t length) const {
  return {NarrowIfDefined(probability, begin, length), NarrowIfDefined(log_probability, begin, length),
          NarrowIfDefined(target, begin, length), NarrowIfDefined(constant, begin, length)};
}

at::ScalarType AccumulationType(at::ScalarType dtype) { return dtype == at::kDouble ? at::kDouble : at::kFloat; }

void LocalStatistics(const at::Tensor& logits, const TargetColumns& targets, Wanted wanted, const at::Tensor& out) {
  Check(out.size(0) == wanted.count() && out.size(1) == logits.size(0), "the statistics have a wrong shape");
  // No columns: sums over nothing, and a maximum that loses every comparison.
  if (logits.size(1) == 0) {
    out.zero_();
    out[0].fill_(-kInfinity);
    return;
  }
  if (HaveKernels(logits)) return KernelStatistics(logits, targets, wanted, out);
  ForEachBlock(logits, [&](int64_t begin, int64_t length) {
    const at::Tensor z = logits.narrow(0, begin, length).to(out.scalar_type());
    const at::Tensor max = z.amax(1);
    at::Tensor shifted = z - Finite(max).unsqueeze(1);
    int64_t slot = 0;
    const auto put = [&](const at::Tensor& value) { out.select(0, slot++).narrow(0, begin, length).copy_(value); };
    put(max);
    const at::Tensor shifted_sum = wanted.shifted_sum ? shifted.sum(1) : at::Tensor();
    // The moment needs z - m and exp(z - m) at once; without it the exponential overwrites its argument.
    const at::Tensor exp = wanted.moment ? shifted.exp() : shifted.exp_();
    put(exp.sum(1));
    if (wanted.target) {
      const TargetColumns here = targets.Narrow(begin, length);
      put(z.gather(1, here.column.unsqueeze(1)).squeeze(1).masked_fill(here.mine.logical_not(), 0));
    }
    if (wanted.shifted_sum) put(shifted_sum);
    if (wanted.moment) put(TimesLog(exp, shifted).sum(1));
  });
}

RowStatistics JoinStatistics(const at::Tensor& gathered, const Vocabulary& vocabulary, Wanted wanted) {
  int64_t slot = 0;
  const auto take = [&] { return gathered.select(1, slot++); };  // [ranks, tokens]
  const at::Tensor maxima = take();
  const at::Tensor sums = take();
  RowStatistics row;
  row.max = Finite(maxima.amax(0));
  // A rank without columns has -inf: its weight is exp(-inf) = 0, and its shift must be finite, because 0 times -inf is
  // NaN.
  const at::Tensor weights = (maxima - row.max).exp();
  const at::Tensor shifts = Finite(maxima) - row.max;
  row.log_sum = (weights * sums).sum(0).log();
  if (wanted.target) row.target = take().sum(0);
  if (wanted.shifted_sum) {
    std::vector<double> lengths;
    for (int64_t rank = 0; rank < gathered.size(0); ++rank) {
      lengths.push_back(static_cast<double>(vocabulary.length(rank)));
    }
    const at::Tensor columns = at::tensor(lengths, gathered.options()).unsqueeze(1);
    row.shifted_sum = (take() + columns * shifts).sum(0);
  }
  if (wanted.moment) row.moment = (weights * (take() + sums * shifts)).sum(0);
  return row;
}

void LocalGradient(const at::Tensor& logits, const at::Tensor& max, const at::Tensor& log_sum,
                   const TargetColumns& targets, const GradientCoefficients& coefficients, const at::Tensor& out) {
  if (logits.size(1) == 0) return;
  if (HaveKernels(logits)) return KernelGradient(logits, max, log_sum, targets, coefficients, out);
  ForEachBlock(logits, [&](int64_t begin, int64_t length) {
    const at::Tensor z = logits.narrow(0, begin, length).to(max.scalar_type());
    const GradientCoefficients c = coefficients.Narrow(begin, length);
    at::Tensor log_p = z - max.narrow(0, begin, length).unsqueeze(1);
    log_p.sub_(log_sum.narrow(0, begin, length).unsqueeze(1));
    at::Tensor d;
    if (c.log_probability.defined()) {
      // Entropy needs p and log p at once; the other losses overwrite log p.
      d = log_p.exp();
      const at::Tensor p_log_p = TimesLog(d, log_p);
      d.mul_(c.probability.unsqueeze(1)).addcmul_(p_log_p, c.log_probability.unsqueeze(1));
    } else {
      d = log_p.exp_().mul_(c.probability.unsqueeze(1));
    }
    if (c.constant.defined()) d.sub_(c.constant.unsqueeze(1));
    if (c.target.defined()) {
      const TargetColumns here = targets.Narrow(begin, length);
      d.scatter_add_(1, here.column.unsqueeze(1), c.target.neg().masked_fill(here.mine.logical_not(), 0).unsqueeze(1));
    }
    out.narrow(0, begin, length).copy_(d);
  });
}

}  // namespace moonshard
