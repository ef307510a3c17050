// Qwen3: Llama's layer with RMS norms over the dims of each query and key head; the last layers may see a window only.
#include "engine/models/architecture.h"

namespace moonshard {
namespace {

DecoderSpec ReadQwen3(ConfigReader& fields, const std::string& /*name*/) {
  DecoderSpec spec;
  spec.config = ReadDecoder(fields, {.head_dim = 128, .num_key_value_heads = 32, .max_position_embeddings = 32768});
  ReadWindowOfLastLayers(fields, spec.config);
  const bool bias = fields.Bool("attention_bias").value_or(false);
  spec.layer = [config = spec.config, bias](int64_t) {
    AttentionOptions options{.qkv_bias = bias, .output_bias = bias};
    options.head_norm = nn::RMSNormOptions(config.head_dim).eps(config.norm_eps);
    return PreNormLayer(config, Attention(config, options).ptr(), GatedMlp(MlpSizesOf(config))).ptr();
  };
  return spec;
}

}  // namespace

namespace architectures {

Architecture Qwen3() { return {{"Qwen3ForCausalLM"}, "qwen3", ReadQwen3}; }

}  // namespace architectures

}  // namespace moonshard
