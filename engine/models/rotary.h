// Rotary position embedding of the reference decoders: tables of cos and sin, and turning heads by them. The tables are
// made once per forward from the whole sequence and passed down: they are the same on every rank.
#pragma once

#include <utility>

#include <ATen/core/Tensor.h>

#include "engine/models/decoder_config.h"

namespace moonshard {

// cos and sin, each [B or 1, T, head_dim].
using RotaryTables = std::pair<at::Tensor, at::Tensor>;

// float32 [head_dim / 2] on the CPU: the angle per position of each pair of dims, stretched as `rope` says. The formulas
// are those of transformers' modeling_rope_utils.py (5.18), in the same precision.
at::Tensor RotaryFrequencies(const RopeConfig& rope, int64_t head_dim);

// Tables for position_ids int64 [B or 1, T] in `dtype`, on the device of position_ids; computed in float32.
RotaryTables MakeRotaryTables(const at::Tensor& frequencies, double attention_factor, const at::Tensor& position_ids,
                              at::ScalarType dtype);

// heads [B, n, T, head_dim] turned by the tables; dims i and i + head_dim/2 are a pair.
at::Tensor ApplyRotary(const at::Tensor& heads, const RotaryTables& tables);

}  // namespace moonshard
