// Mistral: Llama's layer without biases, whose tokens may see a window only.
#include "engine/models/architecture.h"

namespace moonshard {
namespace {

DecoderSpec ReadMistral(ConfigReader& fields, const std::string& /*name*/) {
  DecoderSpec spec;
  spec.config = ReadDecoder(fields, {.num_key_value_heads = 8, .max_position_embeddings = 131072});
  spec.config.kinds[0].window = fields.Int("sliding_window", 1);
  if (!fields.Has("sliding_window")) spec.config.kinds[0].window = 4096;  // null means none
  RequireOneLayerType(fields, spec.config);
  spec.layer = [config = spec.config](int64_t) {
    return PreNormLayer(config, Attention(config, AttentionOptions()).ptr(), GatedMlp(MlpSizesOf(config))).ptr();
  };
  return spec;
}

}  // namespace

namespace architectures {

Architecture Mistral() { return {{"MistralForCausalLM"}, "mistral", ReadMistral}; }

}  // namespace architectures

}  // namespace moonshard
