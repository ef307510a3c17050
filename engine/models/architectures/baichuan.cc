// Baichuan 7B and Baichuan 2 7B: Llama's layer with one projection W_pack for q, k and v. The second generation's head
// has rows of length one: logits = x (w / |w|)^T. The 13B models mask by distance (ALiBi) and are not supported.
//
//   model.layers.N.{input_layernorm, self_attn.{W_pack,o_proj}, post_attention_layernorm, mlp.{gate,up,down}_proj}
#include "engine/models/architecture.h"
#include "engine/runtime/nn/linear.h"

namespace moonshard {
namespace {

DecoderSpec ReadBaichuan(ConfigReader& fields, const std::string& name) {
  DecoderDefaults defaults;
  defaults.max_position_embeddings = 4096;
  defaults.pad_token_id = 0;
  DecoderSpec spec;
  const DecoderConfig& config = spec.config = ReadDecoder(fields, defaults);
  if (fields.Find("max_position_embeddings") == nullptr) {
    fields.Refuse("max_position_embeddings",
                  "Baichuan models without max_position_embeddings use ALiBi, which is not supported",
                  "the config of a 7B model");
  }
  fields.Find("model_max_length");  // the tokenizer's
  const bool sound = fields.Sound({"head_dim", "hidden_size", "num_attention_heads", "num_key_value_heads"});
  if (sound && (config.num_key_value_heads != config.num_attention_heads ||
                config.head_dim * config.num_attention_heads != config.hidden_size)) {
    fields.Refuse(
        "num_key_value_heads",
        "Baichuan needs heads of size hidden_size / num_attention_heads and one key head for each query head");
  }
  if (fields.Number("z_loss_weight", 0).value_or(0) != 0) {
    fields.Refuse("z_loss_weight", "a loss with a term for the size of the logits (z-loss) is not supported", "0");
  }
  if (config.tie_word_embeddings)
    fields.Refuse("tie_word_embeddings", "Baichuan does not tie lm_head to the embedding", "false");
  RequireOneLayerType(fields, config);
  spec.layer = [config](int64_t) {
    return PreNormLayer(config, FusedAttention(config, "W_pack").ptr(), GatedMlp(MlpSizesOf(config))).ptr();
  };
  if (name == "BaichuanForCausalLM") {
    spec.head = [config] { return UnaryModule(nn::NormHead(config.hidden_size, config.vocab_size)); };
  }
  return spec;
}

}  // namespace

namespace architectures {

Architecture Baichuan() {
  // The class of the first generation's 7B is spelt otherwise.
  return {{"BaichuanForCausalLM", "BaiChuanForCausalLM"}, "baichuan", ReadBaichuan};
}

}  // namespace architectures

}  // namespace moonshard
