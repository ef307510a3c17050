// Attention: self-attention of the reference decoders, for the heads of this rank. The numbers of heads and the
// sequence length are those of the outputs of the projections, never those of the config or the input, because under a
// plan a rank has only some of the heads, and the input may be a shard of the sequence. An architecture with other
// projections derives its attention from AttentionBlock, which a ring requires. A SequenceBlock that is no
// AttentionBlock may combine the functions below itself; it cannot attend on a ring, and has LayerContext::mask always.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <torch/nn/module.h>

#include "engine/models/decoder_config.h"
#include "engine/models/rotary.h"
#include "engine/runtime/nn/boundary.h"
#include "engine/runtime/nn/hook.h"
#include "engine/runtime/nn/linear.h"
#include "engine/runtime/nn/norm.h"

namespace moonshard {

// The tensors that all layers of one kind (DecoderConfig::kinds) share in one forward. These tensors are computed once
// for the full sequence and are the same on every rank.
struct LayerContext {
  RotaryTables rotary;
  // bool [B or 1, 1, T, T], true: attends; nullopt: causal attention, or attention on a ring in all layers of the kind,
  // which needs no mask.
  std::optional<at::Tensor> mask;
  at::Tensor positions;           // int64 [B or 1, T]
  std::optional<int64_t> window;  // number of positions to which a token attends, its own included; nullopt: all
  at::Tensor padding;             // bool [B or 1, T], true at tokens; undefined: all positions are tokens
  at::Tensor documents;           // int64 [B or 1, T], of documents.h; undefined: each row is one document
};

// A module that mixes positions of the sequence, or a complete layer: hidden [B, T, H] -> [B, T, H]. forward is virtual
// so that a decoder can hold layers of any class; the plan's hooks run in these calls too.
class SequenceBlock : public torch::nn::Module {
 public:
  virtual at::Tensor forward(const at::Tensor& hidden, const LayerContext& context) = 0;
};

// Returns LayerContext::padding for attention_mask [B or 1, T], nonzero at tokens; nullopt: all positions are tokens.
at::Tensor PaddingOf(const std::optional<at::Tensor>& attention_mask, at::Device device);

// Returns LayerContext::mask. attention_mask: [B or 1, T], nonzero at tokens; nullopt: all positions are tokens.
// `window`: number of positions to which a token attends, including its own; nullopt: all positions up to its own.
// Returns nullopt if causal attention without a mask tensor is sufficient.
std::optional<at::Tensor> MakeAttentionMask(int64_t length, std::optional<int64_t> window,
                                            const std::optional<at::Tensor>& attention_mask, at::Device device);
// The same for the window, padding and documents of `context`.
std::optional<at::Tensor> MaskOf(int64_t length, const LayerContext& context, at::Device device);

nn::Linear MakeLinear(int64_t in, int64_t out, bool bias);

// [B, T, n * head_dim] -> [B, n, T, head_dim]: n is this rank's number of heads.
at::Tensor SplitHeads(const at::Tensor& projected, int64_t head_dim);

// Returns softmax(q k^T * scale) v with the causal mask or `context.mask`; keys and values are repeated to as many
// heads as q has. q [B, n, T, D], k and v [B, m, T, D] with m dividing n -> [B, T, n * D]. The default scale is 1 /
// sqrt(D). Throws c10::ValueError if m does not divide n, or if q does not have the T tokens of context.positions (an
// undefined tensor is not compared).
at::Tensor Attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const LayerContext& context,
                  double dropout, std::optional<double> scale = std::nullopt);

// Self-attention in a model under a plan: over the T tokens of LayerContext, or with a ring (style key `ring`) of this
// rank's tokens over those of all ranks. A class derived from it rotates and scales its heads by OwnTokens, and
// computes attention by Mix.
class AttentionBlock : public SequenceBlock {
 public:
  // `dropout`: of the attention weights, in training.
  explicit AttentionBlock(double dropout) : dropout_(dropout) {}

  // Hookable::SetRing.
  bool SetRing(std::shared_ptr<const AttentionRing> ring);
  bool has_ring() const { return ring_ != nullptr; }
  // The path in the model, for errors. DecoderImpl sets it.
  void SetPath(std::string path) { path_ = std::move(path); }

 protected:
  // The context with the rotary tables and positions of this rank's tokens; without a ring the context itself. `heads`:
  // queries, keys or values [B, n, t, D] of this rank. Throws c10::ValueError if there is no ring and `heads` does not
  // have the T tokens of `context`.
  LayerContext OwnTokens(const LayerContext& context, const at::Tensor& heads) const;
  // As Attend. `context`: of the full sequence. Throws PlanError kNotSupported if a ring would have to drop attention
  // weights.
  at::Tensor Mix(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const LayerContext& context,
                 std::optional<double> scale = std::nullopt) const;

 private:
  double dropout_;
  std::string path_;
  std::shared_ptr<const AttentionRing> ring_;
};

struct AttentionOptions {
  bool qkv_bias = false;
  bool output_bias = false;
  std::optional<nn::RMSNormOptions> head_norm;  // q_norm and k_norm, over the dims of each head
  std::optional<double> scale;                  // of the scores; nullopt: 1 / sqrt(head_dim)
  // Returns the factor of the queries, which depends on their positions: [B or 1, 1, T, 1]. Empty: no factor.
  std::function<at::Tensor(const LayerContext&)> query_scale;
};

// Modules: q_proj, k_proj, v_proj, o_proj, and with `head_norm` also q_norm and k_norm.
class AttentionImpl : public AttentionBlock {
 public:
  AttentionImpl(const DecoderConfig& config, const AttentionOptions& options);

  at::Tensor forward(const at::Tensor& hidden, const LayerContext& context) override;

 private:
  int64_t head_dim_;
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

// Attention with one projection `fused_name` for queries, keys and values, with the rows [q | k | v]. A plan shards
// each of these three parts separately (packed). o_proj is as in AttentionImpl; there are no biases.
class FusedAttentionImpl : public AttentionBlock {
 public:
  FusedAttentionImpl(const DecoderConfig& config, const std::string& fused_name);

  at::Tensor forward(const at::Tensor& hidden, const LayerContext& context) override;

 private:
  int64_t head_dim_;
  int64_t queries_per_key_;
  nn::Linear fused_ = nullptr;
  nn::Linear o_proj_ = nullptr;
};
MOONSHARD_MODULE(FusedAttention);

}  // namespace moonshard
