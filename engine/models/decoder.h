// The reference Llama-family decoder: LlamaForCausalLM and MistralForCausalLM of Hugging Face, with their module and
// parameter names, so that checkpoints load by name and plans written for those names hold.
//
//   model.embed_tokens   model.layers.N.{input_layernorm, self_attn.{q,k,v,o}_proj,
//   model.norm                           post_attention_layernorm, mlp.{gate,up,down}_proj}
//   lm_head              (its weight is embed_tokens' own where the config ties them)
//
// B is the batch, T the sequence length, H the hidden size, V the vocabulary. Whatever a plan shards, T and positions
// come from input_ids. Build inside nn::DeferInit for a model that is larger than one rank. Before:
// ParseDecoderConfig; after: apply/ and loading.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "engine/models/attention.h"
#include "engine/models/decoder_config.h"
#include "engine/nn/embedding.h"
#include "engine/nn/hook.h"
#include "engine/nn/linear.h"
#include "engine/nn/norm.h"

namespace moonshard {

// down(act(gate(x)) * up(x)).
class MlpImpl : public torch::nn::Module {
 public:
  explicit MlpImpl(const DecoderConfig& config);
  at::Tensor forward(const at::Tensor& hidden);

 private:
  Activation activation_;
  nn::Linear gate_proj_ = nullptr;
  nn::Linear up_proj_ = nullptr;
  nn::Linear down_proj_ = nullptr;
};
MOONSHARD_MODULE(Mlp);

// hidden [B, T, H] -> [B, T, H]; T may be a piece of the sequence, for the residual stream is never looked into.
class DecoderLayerImpl : public torch::nn::Module {
 public:
  explicit DecoderLayerImpl(const DecoderConfig& config);
  at::Tensor forward(const at::Tensor& hidden, const RotaryTables& rotary, const AttentionMask& mask);

 private:
  nn::RMSNorm input_layernorm_ = nullptr;
  Attention self_attn_ = nullptr;
  nn::RMSNorm post_attention_layernorm_ = nullptr;
  Mlp mlp_ = nullptr;
};
MOONSHARD_MODULE(DecoderLayer);

class DecoderImpl : public torch::nn::Module {
 public:
  explicit DecoderImpl(const DecoderConfig& config);
  // input_ids int64 [B, T] -> the last hidden states [B, T, H].
  at::Tensor forward(const at::Tensor& input_ids, const std::optional<at::Tensor>& attention_mask = std::nullopt,
                     const std::optional<at::Tensor>& position_ids = std::nullopt);

  nn::Embedding embed_tokens = nullptr;
  std::vector<DecoderLayer> layers;
  nn::RMSNorm norm = nullptr;

 private:
  std::optional<int64_t> sliding_window_;
  double rotary_factor_;
  at::Tensor rotary_frequencies_;
};
MOONSHARD_MODULE(Decoder);

class DecoderForCausalLmImpl : public torch::nn::Module {
 public:
  explicit DecoderForCausalLmImpl(const DecoderConfig& config);

  // input_ids int64 [B, T] -> logits [B, T, V] in the weights' dtype. attention_mask [B, T]: nonzero where there is a
  // token, default everywhere. position_ids int64 [B or 1, T]: default 0 .. T-1.
  at::Tensor forward(const at::Tensor& input_ids, const std::optional<at::Tensor>& attention_mask = std::nullopt,
                     const std::optional<at::Tensor>& position_ids = std::nullopt);

  Decoder model = nullptr;
  nn::Linear lm_head = nullptr;
};
MOONSHARD_MODULE(DecoderForCausalLm);

// A reference model as the program uses it: any architecture, one way to call it.
struct CausalLm {
  std::string architecture;
  std::shared_ptr<torch::nn::Module> module;
  // input_ids, attention_mask, position_ids -> logits, as DecoderForCausalLmImpl::forward.
  std::function<at::Tensor(const at::Tensor&, const std::optional<at::Tensor>&, const std::optional<at::Tensor>&)>
      forward;
};

// The reference model for a config.json. Errors as ParseDecoderConfig.
Result<CausalLm> MakeCausalLm(const JsonValue& config, const std::string& file_name = "config.json");

// Mean cross entropy of predicting token t+1 from t, float32 scalar. logits [B, T, V], labels int64 [B, T]; labels of
// -100 count nothing. NaN where no label counts. As transformers' ForCausalLMLoss.
at::Tensor CausalLmLoss(const at::Tensor& logits, const at::Tensor& labels);

}  // namespace moonshard
