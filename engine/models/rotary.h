// Rotary: the rotary position embedding of the reference decoders: computes the tables of cos and sin, and rotates
// heads by the tables. The tables are computed once per forward for the full sequence and passed to the layers; they
// are the same on every rank.
#pragma once

#include <optional>
#include <utility>

#include <ATen/core/Tensor.h>

#include "engine/models/rope_config.h"

namespace moonshard {

// cos and sin, each [B or 1, T, dims].
using RotaryTables = std::pair<at::Tensor, at::Tensor>;

// Returns float32 [rope.dims / 2] on the CPU: the angle per position of each pair of dims, scaled as `rope` defines for
// sequences of up to `length` positions. The formulas and their precision are those of transformers'
// modeling_rope_utils.py (5.18).
at::Tensor RotaryFrequencies(const RopeConfig& rope, int64_t length = 1);

// Returns the tables for position_ids int64 [B or 1, T] in `dtype`, on the device of position_ids; computed in float32.
// `attention_factor` multiplies cos and sin.
RotaryTables MakeRotaryTables(const at::Tensor& frequencies, double attention_factor, const at::Tensor& position_ids,
                              at::ScalarType dtype);

// Rotates the leading dims of heads [B, n, T, head_dim] by the tables; dims i and i + dims/2 are a pair. Returns a
// tensor of the same shape.
at::Tensor ApplyRotary(const at::Tensor& heads, const RotaryTables& tables);

// The tables of one rope. Caches its frequencies.
class Rotary {
 public:
  explicit Rotary(const RopeConfig& rope);
  // As MakeRotaryTables. `length`: the largest of position_ids plus 1. The frequencies of longrope depend on this
  // length; if it is nullopt, longrope reads the largest position from the device.
  RotaryTables Tables(const at::Tensor& position_ids, at::ScalarType dtype, std::optional<int64_t> length);
  // The largest length with the short frequencies of longrope; nullopt: the frequencies do not depend on the length.
  std::optional<int64_t> short_length() const;

 private:
  RopeConfig rope_;
  at::Tensor frequencies_;
  at::Tensor long_frequencies_;  // longrope beyond the original length; else undefined
};

}  // namespace moonshard
