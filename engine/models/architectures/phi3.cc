// Phi-3 and Phi-4: Llama's layer with one projection for q, k and v and one for gate and up; heads may be turned in
// part, and by LongRoPE.
//
//   model.layers.N.{input_layernorm, self_attn.{qkv,o}_proj, post_attention_layernorm, mlp.{gate_up,down}_proj}
#include "engine/models/architecture.h"

namespace moonshard {
namespace {

DecoderSpec ReadPhi3(ConfigReader& fields, const std::string& /*name*/) {
  DecoderDefaults defaults;
  defaults.max_position_embeddings = 4096;
  defaults.norm_eps = 1e-5;
  defaults.pad_token_id = 32000;
  defaults.rope.turns_part = true;
  defaults.rope.yarn_means_longrope = true;
  defaults.rope.original_max_position_embeddings = 4096;
  DecoderSpec spec;
  spec.config = ReadDecoder(fields, defaults);
  const RopeConfig::Type rope = spec.config.kinds[0].rope.type;
  if (rope != RopeConfig::Type::kDefault && rope != RopeConfig::Type::kLongrope) {
    const char* where = fields.Find("rope_scaling") != nullptr ? "rope_scaling" : "rope_parameters";
    fields.Refuse(where, "this rope type is not supported for Phi-3", "default or longrope");
  }
  spec.config.kinds[0].window = fields.Int("sliding_window", 1);
  RequireOneLayerType(fields, spec.config);
  ReadUnappliedDropout(fields, {"resid_pdrop", "embd_pdrop"});
  spec.layer = [config = spec.config](int64_t) {
    return PreNormLayer(config, FusedAttention(config, "qkv_proj").ptr(), FusedGatedMlp(MlpSizesOf(config))).ptr();
  };
  return spec;
}

}  // namespace

namespace architectures {

Architecture Phi3() { return {{"Phi3ForCausalLM"}, "phi3", ReadPhi3}; }

}  // namespace architectures

}  // namespace moonshard
