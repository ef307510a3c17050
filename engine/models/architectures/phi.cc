// Phi-1, Phi-1.5 and Phi-2: attention and MLP side by side on one LayerNorm, biases everywhere, heads turned in part.
//
//   model.layers.N.{input_layernorm, self_attn.{q,k,v}_proj, self_attn.dense, mlp.{fc1,fc2}}
//   model.layers.N.self_attn.{q,k}_layernorm with qk_layernorm             model.final_layernorm
#include <ATen/TensorOperators.h>

#include "engine/models/architecture.h"

namespace moonshard {
namespace {

nn::LayerNorm PhiNorm(const DecoderConfig& config, int64_t size) {
  return nn::LayerNorm(torch::nn::LayerNormOptions({size}).eps(config.norm_eps));
}

class PhiAttentionImpl : public AttentionBlock {
 public:
  PhiAttentionImpl(const DecoderConfig& config, bool norms_heads)
      : AttentionBlock(config.attention_dropout), head_dim_(config.head_dim) {
    const int64_t q_size = config.num_attention_heads * head_dim_;
    const int64_t kv_size = config.num_key_value_heads * head_dim_;
    q_proj_ = register_module("q_proj", MakeLinear(config.hidden_size, q_size, /*bias=*/true));
    k_proj_ = register_module("k_proj", MakeLinear(config.hidden_size, kv_size, /*bias=*/true));
    v_proj_ = register_module("v_proj", MakeLinear(config.hidden_size, kv_size, /*bias=*/true));
    dense_ = register_module("dense", MakeLinear(q_size, config.hidden_size, /*bias=*/true));
    if (!norms_heads) return;
    q_layernorm_ = register_module("q_layernorm", PhiNorm(config, head_dim_));
    k_layernorm_ = register_module("k_layernorm", PhiNorm(config, head_dim_));
  }

  at::Tensor forward(const at::Tensor& hidden, const LayerContext& context) override {
    at::Tensor q = SplitHeads(q_proj_(hidden), head_dim_);
    at::Tensor k = SplitHeads(k_proj_(hidden), head_dim_);
    const at::Tensor v = SplitHeads(v_proj_(hidden), head_dim_);
    if (q_layernorm_) {
      q = q_layernorm_(q);
      k = k_layernorm_(k);
    }
    const LayerContext own = OwnTokens(context, q);
    q = ApplyRotary(q, own.rotary);
    k = ApplyRotary(k, own.rotary);
    return dense_(Mix(q, k, v, context));
  }

 private:
  int64_t head_dim_;
  nn::Linear q_proj_ = nullptr;
  nn::Linear k_proj_ = nullptr;
  nn::Linear v_proj_ = nullptr;
  nn::Linear dense_ = nullptr;
  nn::LayerNorm q_layernorm_ = nullptr;
  nn::LayerNorm k_layernorm_ = nullptr;
};
MOONSHARD_MODULE(PhiAttention);

class PhiMlpImpl : public torch::nn::Module {
 public:
  explicit PhiMlpImpl(const DecoderConfig& config) : activation_(config.activation) {
    fc1_ = register_module("fc1", MakeLinear(config.hidden_size, config.intermediate_size, /*bias=*/true));
    fc2_ = register_module("fc2", MakeLinear(config.intermediate_size, config.hidden_size, /*bias=*/true));
  }
  at::Tensor forward(const at::Tensor& hidden) { return fc2_(Activate(activation_, fc1_(hidden))); }

 private:
  Activation activation_;
  nn::Linear fc1_ = nullptr;
  nn::Linear fc2_ = nullptr;
};
MOONSHARD_MODULE(PhiMlp);

class PhiLayerImpl : public SequenceBlock {
 public:
  PhiLayerImpl(const DecoderConfig& config, bool norms_heads) {
    self_attn_ = register_module("self_attn", PhiAttention(config, norms_heads));
    mlp_ = register_module("mlp", PhiMlp(config));
    input_layernorm_ = register_module("input_layernorm", PhiNorm(config, config.hidden_size));
  }

  at::Tensor forward(const at::Tensor& hidden, const LayerContext& context) override {
    const at::Tensor normed = input_layernorm_(hidden);
    return self_attn_(normed, context) + mlp_(normed) + hidden;
  }

 private:
  PhiAttention self_attn_ = nullptr;
  PhiMlp mlp_ = nullptr;
  nn::LayerNorm input_layernorm_ = nullptr;
};
MOONSHARD_MODULE(PhiLayer);

DecoderSpec ReadPhi(ConfigReader& fields, const std::string& /*name*/) {
  DecoderDefaults defaults;
  defaults.norm_eps = 1e-5;
  defaults.norm_eps_name = "layer_norm_eps";
  defaults.activation = Activation::kGeluTanh;
  defaults.rope.partial_rotary_factor = 0.5;
  defaults.rope.turns_part = true;
  DecoderSpec spec;
  const DecoderConfig& config = spec.config = ReadDecoder(fields, defaults);
  RequireOneLayerType(fields, config);
  ReadUnappliedDropout(fields, {"resid_pdrop", "embd_pdrop"});
  const bool norms_heads = fields.Bool("qk_layernorm").value_or(false);
  const bool sound = fields.Sound({"head_dim", "hidden_size", "num_attention_heads"});
  if (sound && norms_heads && config.head_dim * config.num_attention_heads != config.hidden_size) {
    fields.Refuse("head_dim", "with qk_layernorm, head_dim must be hidden_size / num_attention_heads");
  }
  spec.layer = [config, norms_heads](int64_t) { return PhiLayer(config, norms_heads).ptr(); };
  spec.norm = [config] { return UnaryModule(PhiNorm(config, config.hidden_size)); };
  spec.norm_name = "final_layernorm";
  spec.head = [config] { return UnaryModule(MakeLinear(config.hidden_size, config.vocab_size, /*bias=*/true)); };
  return spec;
}

}  // namespace

namespace architectures {

Architecture Phi() { return {{"PhiForCausalLM"}, "phi", ReadPhi}; }

}  // namespace architectures

}  // namespace moonshard
