// Attention: self-attention of the reference decoders, on as many heads as this rank's projections have. Head counts
// and the sequence length come from the projections' results, never from the config or the input: under a plan a rank
// has some of the heads, and the input may be a shard of the sequence. An architecture with other projections composes
// the functions.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include <torch/nn/module.h>

#include "engine/models/decoder_config.h"
#include "engine/models/rotary.h"
#include "engine/runtime/nn/hook.h"
#include "engine/runtime/nn/linear.h"
#include "engine/runtime/nn/norm.h"

namespace moonshard {

// What the layers of one kind share in one forward, made once for the full sequence: the same on every rank.
struct LayerContext {
  RotaryTables rotary;
  std::optional<at::Tensor> mask;  // bool [B or 1, 1, T, T], true: attends; absent: plain causal attention
  at::Tensor positions;            // int64 [B or 1, T]
};

// A module that mixes positions of the sequence, or a complete layer: hidden [B, T, H] -> [B, T, H]. forward is virtual
// so that a decoder can hold layers of any class; a call runs the plan's hooks as any call does.
class SequenceBlock : public torch::nn::Module {
 public:
  virtual at::Tensor forward(const at::Tensor& hidden, const LayerContext& context) = 0;
};

// The mask of LayerContext. attention_mask: [B, T], nonzero at tokens; absent: everywhere. `window`: number of
// positions a token attends to, itself included. Nothing if plain causal attention is enough: no mask is materialised
// then.
std::optional<at::Tensor> MakeAttentionMask(int64_t length, std::optional<int64_t> window,
                                            const std::optional<at::Tensor>& attention_mask, at::Device device);

nn::Linear MakeLinear(int64_t in, int64_t out, bool bias);

// [B, T, n * head_dim] -> [B, n, T, head_dim]: n is this rank's number of heads.
at::Tensor SplitHeads(const at::Tensor& projected, int64_t head_dim);

// softmax(q k^T * scale) v, keys and values repeated to as many heads as q has. q [B, n, T, D], k and v [B, m, T, D]
// with m dividing n -> [B, T, n * D]. Without a scale it is 1 / sqrt(D).
at::Tensor Attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const LayerContext& context,
                  double dropout, std::optional<double> scale = std::nullopt);

struct AttentionOptions {
  bool qkv_bias = false;
  bool output_bias = false;
  std::optional<nn::RMSNormOptions> head_norm;  // q_norm and k_norm, over the dims of each head
  std::optional<double> scale;                  // of the scores; 1 / sqrt(head_dim) otherwise
  // A factor of the queries that depends on their position: [B or 1, 1, T, 1].
  std::function<at::Tensor(const LayerContext&)> query_scale;
};

// q_proj, k_proj, v_proj, o_proj, and q_norm and k_norm with the options for them.
class AttentionImpl : public SequenceBlock {
 public:
  AttentionImpl(const DecoderConfig& config, const AttentionOptions& options);

  at::Tensor forward(const at::Tensor& hidden, const LayerContext& context) override;

 private:
  int64_t head_dim_;
  double dropout_;
  std::optional<double> scale_;
  std::function<at::Tensor(const LayerContext&)> query_scale_;
  nn::Linear q_proj_ = nullptr;
  nn::Linear k_proj_ = nullptr;
  nn::Linear v_proj_ = nullptr;
  nn::Linear o_proj_ = nullptr;
  nn::RMSNorm q_norm_ = nullptr;
  nn::RMSNorm k_norm_ = nullptr;
};
MOONSHARD_MODULE(Attention);

// One projection `fused_name` for queries, keys and values, its rows in that order: [q | k | v]. A plan shards each of
// the three by itself (packed). o_proj as above; no biases.
class FusedAttentionImpl : public SequenceBlock {
 public:
  FusedAttentionImpl(const DecoderConfig& config, const std::string& fused_name);

  at::Tensor forward(const at::Tensor& hidden, const LayerContext& context) override;

 private:
  int64_t head_dim_;
  int64_t queries_per_key_;
  double dropout_;
  nn::Linear fused_ = nullptr;
  nn::Linear o_proj_ = nullptr;
};
MOONSHARD_MODULE(FusedAttention);

}  // namespace moonshard
