#include "engine/models/rotary.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/GradMode.h>

namespace moonshard {
namespace {

constexpr double kTwoPi = 2 * std::numbers::pi;

// Llama 3.1: long waves are stretched by `factor`, short ones stay, between the two a blend.
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

// The dim (of head_dim) that turns `rotations` times over the original length.
double DimOfRotations(const RopeConfig& rope, int64_t head_dim, double rotations) {
  const double length = static_cast<double>(rope.original_max_position_embeddings);
  return static_cast<double>(head_dim) * std::log(length / (rotations * kTwoPi)) / (2 * std::log(rope.theta));
}

// YaRN (Peng et al. 2023, arXiv:2309.00071): fast dims stay, slow ones are interpolated, a ramp between.
at::Tensor StretchYarn(const RopeConfig& rope, int64_t head_dim, const at::Tensor& periods) {
  double low = DimOfRotations(rope, head_dim, rope.beta_fast);
  double high = DimOfRotations(rope, head_dim, rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(head_dim - 1));
  if (low == high) high += 0.001;
  const at::Tensor dims = at::arange(head_dim / 2, at::kFloat);
  const at::Tensor kept = 1 - at::clamp((dims - low) / (high - low), 0, 1);
  return 1.0 / (rope.factor * periods) * (1 - kept) + 1.0 / periods * kept;
}

// (x1, x2) -> (-x2, x1), the halves of the last dim.
at::Tensor RotateHalf(const at::Tensor& x) {
  const int64_t half = x.size(-1) / 2;
  return at::cat({-x.narrow(-1, half, x.size(-1) - half), x.narrow(-1, 0, half)}, -1);
}

}  // namespace

at::Tensor RotaryFrequencies(const RopeConfig& rope, int64_t head_dim) {
  const at::Tensor exponents = at::arange(0, head_dim, 2, at::kLong).to(at::kFloat) / head_dim;
  const at::Tensor periods = at::pow(rope.theta, exponents);
  at::Tensor frequencies = 1.0 / periods;
  switch (rope.type) {
    case RopeConfig::Type::kDefault: return frequencies;
    case RopeConfig::Type::kLinear: return frequencies / rope.factor;
    case RopeConfig::Type::kLlama3: return StretchLlama3(rope, frequencies);
    case RopeConfig::Type::kYarn: return StretchYarn(rope, head_dim, periods);
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
  return heads * cos + RotateHalf(heads) * sin;
}

}  // namespace moonshard
