// Qwen3-MoE: Qwen3's attention; a layer has experts, or an MLP, as the config declares. Names as checkpoints have them.
//
//   model.layers.N.mlp.{gate, experts.E.{gate,up,down}_proj}
#include "engine/models/architecture.h"
#include "engine/models/moe.h"

namespace moonshard {
namespace {

DecoderSpec ReadQwen3Moe(ConfigReader& fields, const std::string& /*name*/) {
  DecoderDefaults defaults;
  defaults.num_key_value_heads = 4;
  defaults.max_position_embeddings = 32768;
  DecoderSpec spec;
  spec.config = ReadDecoder(fields, defaults);
  const std::optional<int64_t> window = fields.Int("sliding_window", 1);
  if (fields.Bool("use_sliding_window").value_or(false)) {
    spec.config.kinds[0].window = fields.Has("sliding_window") ? window : 4096;
  }
  RequireOneLayerType(fields, spec.config);
  fields.Find("max_window_layers");  // of no effect: all layers see the window
  const bool bias = fields.Bool("attention_bias").value_or(false);

  MoeOptions moe = ReadMoe(fields, 128, 8);
  moe.normalize = fields.Bool("norm_topk_prob").value_or(false);
  moe.expert = MlpSizesOf(spec.config);
  moe.expert.intermediate = fields.RequiredInt("moe_intermediate_size", 1);
  spec.layer = [config = spec.config, moe, bias, sparse = ReadSparseLayers(fields)](int64_t index) {
    AttentionOptions options{.qkv_bias = bias, .output_bias = bias};
    options.head_norm = nn::RMSNormOptions(config.head_dim).eps(config.norm_eps);
    const UnaryModule mlp =
        sparse.contains(index) ? UnaryModule(SparseMoe(moe)) : UnaryModule(GatedMlp(MlpSizesOf(config)));
    return PreNormLayer(config, Attention(config, options).ptr(), mlp).ptr();
  };
  return spec;
}

}  // namespace

namespace architectures {

Architecture Qwen3Moe() { return {{"Qwen3MoeForCausalLM"}, "qwen3_moe", ReadQwen3Moe}; }

}  // namespace architectures

}  // namespace moonshard
