// Qwen3-MoE: Qwen3's attention; a layer has experts, or an MLP, as the config declares. Names as checkpoints have them.
//
//   model.layers.N.mlp.{gate, experts.E.{gate,up,down}_proj}
#include <algorithm>

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
  const int64_t every = fields.Int("decoder_sparse_step", 1).value_or(1);
  const std::vector<int64_t> dense = fields.Ints("mlp_only_layers").value_or(std::vector<int64_t>{});
  spec.layer = [config = spec.config, moe, bias, every, dense](int64_t index) {
    AttentionOptions options{.qkv_bias = bias, .output_bias = bias};
    options.head_norm = nn::RMSNormOptions(config.head_dim).eps(config.norm_eps);
    const bool has_experts = (index + 1) % every == 0 && std::find(dense.begin(), dense.end(), index) == dense.end();
    const UnaryModule mlp = has_experts ? UnaryModule(SparseMoe(moe)) : UnaryModule(GatedMlp(MlpSizesOf(config)));
    return PreNormLayer(config, Attention(config, options).ptr(), mlp).ptr();
  };
  return spec;
}

}  // namespace

namespace architectures {

Architecture Qwen3Moe() { return {{"Qwen3MoeForCausalLM"}, "qwen3_moe", ReadQwen3Moe}; }

}  // namespace architectures

}  // namespace moonshard
