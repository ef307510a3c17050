#include "engine/models/rotary.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/GradMode.h>

namespace moonshard {
namespace {

constexpr double kTwoPi = 2 * std::numbers::pi;

// Llama 3.1: frequencies of long wavelengths are divided by `factor`, those of short ones stay, with a blend between.
at::Tensor StretchLlama3(const RopeConfig& rope, const at::Tensor& frequencies) {
  const double old_length = static_cast<double>(rope.original_max_position_embeddings);
  const double longest_kept = old_length / rope.high_freq_factor;
  const double shortest_stretched = old_length / rope.low_freq_factor;
  const at::Tensor wavelength = kTwoPi / frequencies;
  const at::Tensor is_long = wavelength.gt(shortest_stretched);
  const at::Tensor stretched = at::where(is_long, frequencies / rope.factor, frequencies);
  const at::Tensor blend =
      (old_length / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  const at::Tensor blended = (1 - blend) * stretched / rope.factor + blend * stretched;
  const at::Tensor between = wavelength.lt(longest_kept).logical_not().logical_and(is_long.logical_not());
  return at::where(between, blended, stretched);
}

// The dim (of those rotated) that rotates `rotations` times over the original length.
double DimOfRotations(const RopeConfig& rope, double rotations) {
  const double length = static_cast<double>(rope.original_max_position_embeddings);
  return static_cast<double>(rope.dims) * std::log(length / (rotations * kTwoPi)) / (2 * std::log(rope.theta));
}

// YaRN (Peng et al. 2023, arXiv:2309.00071): fast dims stay, slow ones are interpolated, with a ramp between.
at::Tensor StretchYarn(const RopeConfig& rope, const at::Tensor& periods) {
  double low = DimOfRotations(rope, rope.beta_fast);
  double high = DimOfRotations(rope, rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(rope.dims - 1));
  if (low == high) high += 0.001;
  const at::Tensor dims = at::arange(rope.dims / 2, at::kFloat);
  const at::Tensor kept = 1 - at::clamp((dims - low) / (high - low), 0, 1);
  return 1.0 / (rope.factor * periods) * (1 - kept) + 1.0 / periods * kept;
}

// LongRoPE (Ding et al. 2024, arXiv:2402.13753): a factor for each pair of dims.
at::Tensor StretchLongrope(const std::vector<double>& stretches, const at::Tensor& periods) {
  return 1.0 / (at::tensor(stretches, at::kFloat) * periods);
}

// (x1, x2) -> (-x2, x1), the halves of the last dim.
at::Tensor RotateHalf(const at::Tensor& x) {
  const int64_t half = x.size(-1) / 2;
  return at::cat({-x.narrow(-1, half, x.size(-1) - half), x.narrow(-1, 0, half)}, -1);
}

}  // namespace

at::Tensor RotaryFrequencies(const RopeConfig& rope, int64_t length) {
  // The order and types of these operations are those of transformers: otherwise the last bit of a frequency differs,
  // which large positions multiply.
  const at::Tensor exponents = at::arange(0, rope.dims, 2, at::kLong).to(at::kFloat) / rope.dims;
  const at::Tensor periods = at::pow(rope.theta, exponents);
  at::Tensor frequencies = 1.0 / periods;
  switch (rope.type) {
    case RopeConfig::Type::kDefault: return frequencies;
    case RopeConfig::Type::kLinear: return frequencies / rope.factor;
    case RopeConfig::Type::kLlama3: return StretchLlama3(rope, frequencies);
    case RopeConfig::Type::kYarn: return StretchYarn(rope, periods);
    case RopeConfig::Type::kLongrope:
      return StretchLongrope(length > rope.original_max_position_embeddings ? rope.long_factor : rope.short_factor,
                             periods);
  }
  return frequencies;
}

RotaryTables MakeRotaryTables(const at::Tensor& frequencies, double attention_factor, const at::Tensor& position_ids,
                              at::ScalarType dtype) {
  const c10::NoGradGuard no_grad;
  const at::Tensor angles = position_ids.unsqueeze(-1).to(at::kFloat) * frequencies.to(position_ids.device());
  const at::Tensor both_halves = at::cat({angles, angles}, -1);
  return {(both_halves.cos() * attention_factor).to(dtype), (both_halves.sin() * attention_factor).to(dtype)};
}

at::Tensor ApplyRotary(const at::Tensor& heads, const RotaryTables& tables) {
  const at::Tensor cos = tables.first.unsqueeze(1);
  const at::Tensor sin = tables.second.unsqueeze(1);
  const int64_t dims = cos.size(-1), rest = heads.size(-1) - dims;
  if (rest == 0) return heads * cos + RotateHalf(heads) * sin;
  const at::Tensor turned = heads.narrow(-1, 0, dims);
  return at::cat({turned * cos + RotateHalf(turned) * sin, heads.narrow(-1, dims, rest)}, -1);
}

Rotary::Rotary(const RopeConfig& rope) : rope_(rope), frequencies_(RotaryFrequencies(rope)) {
  if (rope.type == RopeConfig::Type::kLongrope) {
    long_frequencies_ = RotaryFrequencies(rope, rope.original_max_position_embeddings + 1);
  }
}

std::optional<int64_t> Rotary::short_length() const {
  if (!long_frequencies_.defined()) return std::nullopt;
  return rope_.original_max_position_embeddings;
}

RotaryTables Rotary::Tables(const at::Tensor& position_ids, at::ScalarType dtype, std::optional<int64_t> length) {
  bool is_long = false;
  if (long_frequencies_.defined()) {
    if (!length) length = position_ids.max().item<int64_t>() + 1;
    is_long = *length > *short_length();
  }
  at::Tensor& frequencies = is_long ? long_frequencies_ : frequencies_;
  frequencies = frequencies.to(position_ids.device());
  return MakeRotaryTables(frequencies, rope_.attention_factor, position_ids, dtype);
}

}  // namespace moonshard
