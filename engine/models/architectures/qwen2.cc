// Qwen2 and Qwen2.5: Llama's layer with biases on q, k and v; the last layers may see a window only.
#include "engine/models/architecture.h"

namespace moonshard {
namespace {

DecoderSpec ReadQwen2(ConfigReader& fields, const std::string& /*name*/) {
  DecoderSpec spec;
  spec.config = ReadDecoder(fields, {.num_key_value_heads = 32, .max_position_embeddings = 32768});
  ReadWindowOfLastLayers(fields, spec.config);
  spec.layer = [config = spec.config](int64_t) {
    const AttentionOptions options{.qkv_bias = true};
    return PreNormLayer(config, Attention(config, options).ptr(), GatedMlp(MlpSizesOf(config))).ptr();
  };
  return spec;
}

}  // namespace

namespace architectures {

Architecture Qwen2() { return {{"Qwen2ForCausalLM"}, "qwen2", ReadQwen2}; }

}  // namespace architectures

}  // namespace moonshard
