// Mixtral: Mistral's attention, and in every layer experts instead of an MLP, under the names that checkpoints have.
//
//   model.layers.N.block_sparse_moe.{gate, experts.E.{w1,w2,w3}}     w1 is the gate's projection, w3 up, w2 down
#include "engine/models/architecture.h"
#include "engine/models/moe.h"

namespace moonshard {
namespace {

DecoderSpec ReadMixtral(ConfigReader& fields, const std::string& /*name*/) {
  DecoderDefaults defaults;
  defaults.num_key_value_heads = 8;
  defaults.max_position_embeddings = 131072;
  defaults.norm_eps = 1e-5;
  defaults.rope.theta = 1e6;
  DecoderSpec spec;
  spec.config = ReadDecoder(fields, defaults);
  spec.config.kinds[0].window = fields.Int("sliding_window", 1);
  RequireOneLayerType(fields, spec.config);
  ReadUnappliedDropout(fields, {"router_jitter_noise"});
  MoeOptions moe = ReadMoe(fields, 8, 2);
  moe.normalize = true;
  moe.expert = MlpSizesOf(spec.config);
  moe.expert.gate = "w1";
  moe.expert.up = "w3";
  moe.expert.down = "w2";
  spec.layer = [config = spec.config, moe](int64_t) {
    return PreNormLayer(config, Attention(config, AttentionOptions()).ptr(), SparseMoe(moe), "block_sparse_moe").ptr();
  };
  return spec;
}

}  // namespace

namespace architectures {

Architecture Mixtral() { return {{"MixtralForCausalLM"}, "mixtral", ReadMixtral}; }

}  // namespace architectures

}  // namespace moonshard
