// Ministral3: Mistral's layer, whose queries grow with their position as Llama 4's do:
//
//   q <- q * (1 + beta * log(1 + floor(position / original_max_position_embeddings)))
//
// (Nakanishi 2025, arXiv:2501.19399, scalable softmax, in Llama 4's form).
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "engine/models/architecture.h"

namespace moonshard {
namespace {

DecoderSpec ReadMinistral3(ConfigReader& fields, const std::string& /*name*/) {
  DecoderDefaults defaults;
  defaults.head_dim = 128;
  defaults.num_key_value_heads = 8;
  defaults.max_position_embeddings = 262144;
  defaults.norm_eps = 1e-5;
  defaults.pad_token_id = 11;
  defaults.rope.also_reads = {"llama_4_scaling_beta", "max_position_embeddings"};
  DecoderSpec spec;
  spec.config = ReadDecoder(fields, defaults);
  spec.config.kinds[0].window = fields.Int("sliding_window", 1);
  RequireOneLayerType(fields, spec.config);
  ConfigReader rope = RopeObject(fields);
  const double beta = rope.RequiredNumber("llama_4_scaling_beta", 0);
  const auto length = static_cast<double>(rope.RequiredInt("original_max_position_embeddings", 1));
  AttentionOptions options;
  options.query_scale = [beta, length](const LayerContext& context) {
    const at::Tensor lengths = at::floor(context.positions.to(at::kFloat) / length);
    return (1 + beta * at::log(1 + lengths)).unsqueeze(1).unsqueeze(-1);
  };
  spec.layer = [config = spec.config, options](int64_t) {
    return PreNormLayer(config, Attention(config, options).ptr(), GatedMlp(MlpSizesOf(config))).ptr();
  };
  return spec;
}

}  // namespace

namespace architectures {

Architecture Ministral3() { return {{"Ministral3ForCausalLM"}, "ministral3", ReadMinistral3}; }

}  // namespace architectures

}  // namespace moonshard
