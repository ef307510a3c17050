// Llama: the decoder that most others vary.
//
//   model.layers.N.{input_layernorm, self_attn.{q,k,v,o}_proj, post_attention_layernorm, mlp.{gate,up,down}_proj}
#include "engine/models/architecture.h"

namespace moonshard {
namespace {

DecoderSpec ReadLlama(ConfigReader& fields, const std::string& /*name*/) {
  DecoderSpec spec;
  spec.config = ReadDecoder(fields);
  RequireOneLayerType(fields, spec.config);
  const bool attention_bias = fields.Bool("attention_bias").value_or(false);
  const bool mlp_bias = fields.Bool("mlp_bias").value_or(false);
  spec.layer = [config = spec.config, attention_bias, mlp_bias](int64_t) {
    const AttentionOptions options{.qkv_bias = attention_bias, .output_bias = attention_bias};
    return PreNormLayer(config, Attention(config, options).ptr(), GatedMlp(MlpSizesOf(config, mlp_bias))).ptr();
  };
  return spec;
}

}  // namespace

namespace architectures {

Architecture Llama() { return {{"LlamaForCausalLM"}, "llama", ReadLlama}; }

}  // namespace architectures

}  // namespace moonshard
