// Qwen2-MoE: Qwen2's attention; a layer has experts and a shared expert, or an MLP, as the config declares. Names as
// checkpoints have them. Where the config has use_sliding_window and no layer_types, every second layer below
// max_window_layers has the window, from the first on, as in transformers.
//
//   model.layers.N.mlp.{gate, experts.E.{gate,up,down}_proj, shared_expert.{gate,up,down}_proj, shared_expert_gate}
#include "engine/models/architecture.h"
#include "engine/models/moe.h"

namespace moonshard {
namespace {

// A config without use_sliding_window has a window of 0 where transformers wrote it.
std::optional<int64_t> ReadWindow(ConfigReader& fields) {
  if (fields.Bool("use_sliding_window").value_or(false)) {
    return fields.Has("sliding_window") ? fields.Int("sliding_window", 1) : 4096;
  }
  fields.Int("sliding_window", 0);
  return std::nullopt;
}

DecoderSpec ReadQwen2Moe(ConfigReader& fields, const std::string& /*name*/) {
  DecoderSpec spec;
  spec.config = ReadDecoder(fields, {.num_key_value_heads = 16, .max_position_embeddings = 32768});
  ReadSlidingLayers(
      fields, ReadWindow(fields), [](int64_t layer, int64_t windows) { return layer % 2 == 0 && layer < windows; },
      fields.Int("max_window_layers", 0).value_or(28), spec.config);

  MoeOptions moe = ReadMoe(fields, 60, 4);
  moe.normalize = fields.Bool("norm_topk_prob").value_or(false);
  moe.expert = MlpSizesOf(spec.config);
  moe.expert.intermediate = fields.Int("moe_intermediate_size", 1).value_or(1408);
  moe.shared = MlpSizesOf(spec.config);
  moe.shared->intermediate = fields.Int("shared_expert_intermediate_size", 1).value_or(5632);
  const bool bias = fields.Bool("qkv_bias").value_or(true);
  spec.layer = [config = spec.config, moe, bias, sparse = ReadSparseLayers(fields)](int64_t index) {
    const UnaryModule mlp =
        sparse.contains(index) ? UnaryModule(SparseMoe(moe)) : UnaryModule(GatedMlp(MlpSizesOf(config)));
    return PreNormLayer(config, Attention(config, AttentionOptions{.qkv_bias = bias}).ptr(), mlp).ptr();
  };
  return spec;
}

}  // namespace

namespace architectures {

Architecture Qwen2Moe() { return {{"Qwen2MoeForCausalLM"}, "qwen2_moe", ReadQwen2Moe}; }

}  // namespace architectures

}  // namespace moonshard
