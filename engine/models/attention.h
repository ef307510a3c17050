// Attention: self-attention of the reference decoders, on however many heads this rank's projections hold. Head counts
// and the sequence length come from what q_proj, k_proj and v_proj return, never from the config or the input: under a
// plan those hold this rank's heads, and the input may be a piece of the sequence.
#pragma once

#include <optional>

#include <torch/nn/module.h>

#include "engine/models/decoder_config.h"
#include "engine/models/rotary.h"
#include "engine/nn/hook.h"
#include "engine/nn/linear.h"

namespace moonshard {

// Which keys a query may see, made once per forward for the whole sequence. Without `mask` a query sees its own position
// and all before it.
struct AttentionMask {
  std::optional<at::Tensor> mask;  // bool [B or 1, 1, T, T], true: may see
};

// attention_mask: [B, T], nonzero where there is a token; absent: everywhere. `window`: how many positions a token sees,
// itself included. Nothing is materialised where plain causality says it all.
AttentionMask MakeAttentionMask(int64_t length, std::optional<int64_t> window,
                                const std::optional<at::Tensor>& attention_mask, at::Device device);

class AttentionImpl : public torch::nn::Module {
 public:
  explicit AttentionImpl(const DecoderConfig& config);

  // hidden [B, T, H] -> [B, T, H].
  at::Tensor forward(const at::Tensor& hidden, const RotaryTables& rotary, const AttentionMask& mask);

 private:
  int64_t head_dim_;
  double dropout_;
  nn::Linear q_proj_ = nullptr;
  nn::Linear k_proj_ = nullptr;
  nn::Linear v_proj_ = nullptr;
  nn::Linear o_proj_ = nullptr;
};

MOONSHARD_MODULE(Attention);

}  // namespace moonshard
