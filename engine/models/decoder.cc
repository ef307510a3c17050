#include "engine/models/decoder.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <torch/nn/modules/container/modulelist.h>

#include "engine/base/check.h"

namespace moonshard {
namespace {

at::Tensor Activate(Activation activation, const at::Tensor& x) {
  switch (activation) {
    case Activation::kSilu: return at::silu(x);
    case Activation::kGelu: return at::gelu(x);
    case Activation::kGeluTanh: return at::gelu(x, "tanh");
    case Activation::kRelu: return at::relu(x);
  }
  Check(false, "unknown activation");
  return x;
}

nn::RMSNorm Norm(const DecoderConfig& config) {
  return nn::RMSNorm(nn::RMSNormOptions(config.hidden_size).eps(config.rms_norm_eps));
}

}  // namespace

MlpImpl::MlpImpl(const DecoderConfig& config) : activation_(config.hidden_act) {
  const auto wide = torch::nn::LinearOptions(config.hidden_size, config.intermediate_size).bias(config.mlp_bias);
  const auto narrow = torch::nn::LinearOptions(config.intermediate_size, config.hidden_size).bias(config.mlp_bias);
  gate_proj_ = register_module("gate_proj", nn::Linear(wide));
  up_proj_ = register_module("up_proj", nn::Linear(wide));
  down_proj_ = register_module("down_proj", nn::Linear(narrow));
}

at::Tensor MlpImpl::forward(const at::Tensor& hidden) {
  return down_proj_(Activate(activation_, gate_proj_(hidden)) * up_proj_(hidden));
}

DecoderLayerImpl::DecoderLayerImpl(const DecoderConfig& config) {
  self_attn_ = register_module("self_attn", Attention(config));
  mlp_ = register_module("mlp", Mlp(config));
  input_layernorm_ = register_module("input_layernorm", Norm(config));
  post_attention_layernorm_ = register_module("post_attention_layernorm", Norm(config));
}

at::Tensor DecoderLayerImpl::forward(const at::Tensor& hidden, const RotaryTables& rotary, const AttentionMask& mask) {
  const at::Tensor attended = hidden + self_attn_(input_layernorm_(hidden), rotary, mask);
  return attended + mlp_(post_attention_layernorm_(attended));
}

DecoderImpl::DecoderImpl(const DecoderConfig& config)
    : sliding_window_(config.sliding_window),
      rotary_factor_(config.rope.attention_factor),
      rotary_frequencies_(RotaryFrequencies(config.rope, config.head_dim)) {
  auto table = torch::nn::EmbeddingOptions(config.vocab_size, config.hidden_size);
  if (config.pad_token_id) table.padding_idx(*config.pad_token_id);
  embed_tokens = register_module("embed_tokens", nn::Embedding(table));
  auto list = register_module("layers", torch::nn::ModuleList());
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    layers.emplace_back(config);
    list->push_back(layers.back());
  }
  norm = register_module("norm", Norm(config));
}

at::Tensor DecoderImpl::forward(const at::Tensor& input_ids, const std::optional<at::Tensor>& attention_mask,
                                const std::optional<at::Tensor>& position_ids) {
  const int64_t length = input_ids.size(1);
  at::Tensor hidden = embed_tokens(input_ids);
  const at::Tensor positions = position_ids ? *position_ids : at::arange(length, input_ids.options()).unsqueeze(0);
  rotary_frequencies_ = rotary_frequencies_.to(input_ids.device());
  const RotaryTables rotary = MakeRotaryTables(rotary_frequencies_, rotary_factor_, positions, hidden.scalar_type());
  const AttentionMask mask = MakeAttentionMask(length, sliding_window_, attention_mask, input_ids.device());
  for (DecoderLayer& layer : layers) hidden = layer(hidden, rotary, mask);
  return norm(hidden);
}

DecoderForCausalLmImpl::DecoderForCausalLmImpl(const DecoderConfig& config) {
  model = register_module("model", Decoder(config));
  lm_head = register_module("lm_head",
                            nn::Linear(torch::nn::LinearOptions(config.hidden_size, config.vocab_size).bias(false)));
  if (config.tie_word_embeddings) lm_head->TieWeight(model->embed_tokens->weight);
}

at::Tensor DecoderForCausalLmImpl::forward(const at::Tensor& input_ids, const std::optional<at::Tensor>& attention_mask,
                                           const std::optional<at::Tensor>& position_ids) {
  return lm_head(model(input_ids, attention_mask, position_ids));
}

Result<CausalLm> MakeCausalLm(const JsonValue& config, const std::string& file_name) {
  Diagnostics diagnostics;
  const std::optional<DecoderConfig> decoder = ParseDecoderConfig(config, file_name).Collect(diagnostics);
  if (!decoder) return diagnostics;
  DecoderForCausalLm model(*decoder);
  CausalLm made;
  made.architecture = decoder->architecture;
  made.module = model.ptr();
  made.forward = [model](const at::Tensor& input_ids, const std::optional<at::Tensor>& attention_mask,
                         const std::optional<at::Tensor>& position_ids) mutable {
    return model(input_ids, attention_mask, position_ids);
  };
  return {std::move(made), std::move(diagnostics)};
}

at::Tensor CausalLmLoss(const at::Tensor& logits, const at::Tensor& labels) {
  constexpr int64_t kIgnored = -100;
  const int64_t length = logits.size(1);
  const at::Tensor predicted = logits.narrow(1, 0, length - 1).to(at::kFloat).reshape({-1, logits.size(2)});
  const at::Tensor wanted = labels.narrow(1, 1, length - 1).reshape({-1}).to(predicted.device());
  return at::cross_entropy_loss(predicted, wanted, /*weight=*/{}, at::Reduction::Mean, kIgnored);
}

}  // namespace moonshard
