// Gemma 3, text: layers of two kinds, each with a rope of its own (a window, and everything), norms before and after
// each block, norms of query and key heads, an embedding times sqrt(hidden_size), and capped logits. Its norms multiply
// by 1 + weight.
//
//   model.layers.N.{input_layernorm, self_attn.{q,k,v,o}_proj, self_attn.{q,k}_norm, post_attention_layernorm,
//                   pre_feedforward_layernorm, mlp.{gate,up,down}_proj, post_feedforward_layernorm}
#include <cmath>

#include <ATen/TensorOperators.h>

#include "engine/models/architecture.h"

namespace moonshard {
namespace {

nn::RMSNormOptions NormOptions(const DecoderConfig& config, int64_t size) {
  return nn::RMSNormOptions(size).eps(config.norm_eps).unit_offset(true);
}

nn::RMSNorm GemmaNorm(const DecoderConfig& config) { return nn::RMSNorm(NormOptions(config, config.hidden_size)); }

class Gemma3LayerImpl : public SequenceBlock {
 public:
  Gemma3LayerImpl(const DecoderConfig& config, const AttentionOptions& options) {
    self_attn_ = register_module("self_attn", Attention(config, options));
    mlp_ = register_module("mlp", GatedMlp(MlpSizesOf(config)));
    input_layernorm_ = register_module("input_layernorm", GemmaNorm(config));
    post_attention_layernorm_ = register_module("post_attention_layernorm", GemmaNorm(config));
    pre_feedforward_layernorm_ = register_module("pre_feedforward_layernorm", GemmaNorm(config));
    post_feedforward_layernorm_ = register_module("post_feedforward_layernorm", GemmaNorm(config));
  }

  at::Tensor forward(const at::Tensor& hidden, const LayerContext& context) override {
    const at::Tensor attended = hidden + post_attention_layernorm_(self_attn_(input_layernorm_(hidden), context));
    return attended + post_feedforward_layernorm_(mlp_(pre_feedforward_layernorm_(attended)));
  }

 private:
  Attention self_attn_ = nullptr;
  GatedMlp mlp_ = nullptr;
  nn::RMSNorm input_layernorm_ = nullptr;
  nn::RMSNorm post_attention_layernorm_ = nullptr;
  nn::RMSNorm pre_feedforward_layernorm_ = nullptr;
  nn::RMSNorm post_feedforward_layernorm_ = nullptr;
};
MOONSHARD_MODULE(Gemma3Layer);

// The rope of one kind of layer: its object inside rope_parameters, and the fields of transformers 4 configs beside it.
RopeConfig ReadGemmaLayerKind(ConfigReader& fields, ConfigReader& ropes, const char* kind, const DecoderConfig& config,
                              RopeDefaults defaults) {
  const bool everything = std::string_view(kind) == "full_attention";
  defaults.theta = fields.Number(everything ? "rope_theta" : "rope_local_base_freq", 0).value_or(defaults.theta);
  ConfigReader own = ropes.Object(kind);
  ConfigReader scaling = fields.Object("rope_scaling");
  if (everything && !own.empty() && !scaling.empty()) {
    fields.Refuse("rope_scaling",
                  "rope_scaling and rope_parameters.full_attention are both set; only one of them can apply");
  }
  ConfigReader& rope = everything && own.empty() && !scaling.empty() ? scaling : own;
  return ReadRopeObject(fields, rope, config.head_dim, config.max_position_embeddings, defaults);
}

DecoderSpec ReadGemma3(ConfigReader& fields, const std::string& /*name*/) {
  DecoderDefaults defaults;
  defaults.head_dim = 256;
  defaults.num_key_value_heads = 4;
  defaults.max_position_embeddings = 131072;
  defaults.activation = Activation::kGeluTanh;
  defaults.activation_name = "hidden_activation";
  defaults.tie_word_embeddings = true;
  defaults.pad_token_id = 0;
  defaults.one_rope = false;
  DecoderSpec spec;
  DecoderConfig& config = spec.config = ReadDecoder(fields, defaults);

  std::optional<int64_t> window = fields.Int("sliding_window", 1);
  if (!fields.Has("sliding_window")) window = 4096;
  if (!window) fields.Refuse("sliding_window", "Gemma 3 requires sliding_window for the layers with sliding attention");
  const int64_t pattern = fields.Int("sliding_window_pattern", 1).value_or(6);
  fields.Find("_sliding_window_pattern");  // what transformers keeps of it, of no effect beside layer_types
  ReadSlidingLayers(
      fields, window, [](int64_t layer, int64_t every) { return (layer + 1) % every != 0; }, pattern, config);
  ConfigReader ropes = fields.Object("rope_parameters");
  config.kinds[0].rope = ReadGemmaLayerKind(fields, ropes, "full_attention", config, {.theta = 1e6});
  if (config.kinds.size() > 1) {
    config.kinds[1].rope = ReadGemmaLayerKind(fields, ropes, "sliding_attention", config, {.theta = 1e4});
  }
  ropes.NameUnread("Gemma 3", {}, ropes.json().Keys());
  fields.RequireBool("use_bidirectional_attention", false, "attention to later tokens is not supported");
  // transformers 5.18 takes the field and computes without it.
  fields.WarnUnused("attn_logit_softcapping", "Gemma 3, as in transformers,");

  spec.embedding_scale = std::sqrt(static_cast<double>(config.hidden_size));
  spec.logit_softcap = fields.Number("final_logit_softcapping", 0);
  spec.norm = [config] { return UnaryModule(GemmaNorm(config)); };
  AttentionOptions options;
  options.qkv_bias = options.output_bias = fields.Bool("attention_bias").value_or(false);
  options.scale = 1 / std::sqrt(fields.Number("query_pre_attn_scalar", 0).value_or(256));
  options.head_norm = NormOptions(config, config.head_dim);
  spec.layer = [config, options](int64_t) { return Gemma3Layer(config, options).ptr(); };
  return spec;
}

}  // namespace

namespace architectures {

Architecture Gemma3() { return {{"Gemma3ForCausalLM"}, "gemma3_text", ReadGemma3}; }

}  // namespace architectures

}  // namespace moonshard
