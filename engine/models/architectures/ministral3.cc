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

struct QueryGrowth {
  double beta = 0;
  double length = 1;
};

class Ministral3AttentionImpl : public SequenceBlock {
 public:
  Ministral3AttentionImpl(const DecoderConfig& config, QueryGrowth growth)
      : head_dim_(config.head_dim), dropout_(config.attention_dropout), growth_(growth) {
    const int64_t q_size = config.num_attention_heads * head_dim_;
    const int64_t kv_size = config.num_key_value_heads * head_dim_;
    q_proj_ = register_module("q_proj", MakeLinear(config.hidden_size, q_size, /*bias=*/false));
    k_proj_ = register_module("k_proj", MakeLinear(config.hidden_size, kv_size, /*bias=*/false));
    v_proj_ = register_module("v_proj", MakeLinear(config.hidden_size, kv_size, /*bias=*/false));
    o_proj_ = register_module("o_proj", MakeLinear(q_size, config.hidden_size, /*bias=*/false));
  }

  at::Tensor forward(const at::Tensor& hidden, const LayerContext& context) override {
    const at::Tensor q = ApplyRotary(SplitHeads(q_proj_(hidden), head_dim_), context.rotary);
    const at::Tensor k = ApplyRotary(SplitHeads(k_proj_(hidden), head_dim_), context.rotary);
    const at::Tensor v = SplitHeads(v_proj_(hidden), head_dim_);
    const at::Tensor lengths = at::floor(context.positions.to(at::kFloat) / growth_.length);
    const at::Tensor growth = 1 + growth_.beta * at::log(1 + lengths);
    const at::Tensor grown = q * growth.unsqueeze(1).unsqueeze(-1).to(q.scalar_type());
    return o_proj_(Attend(grown, k, v, context, is_training() ? dropout_ : 0.0));
  }

 private:
  int64_t head_dim_;
  double dropout_;
  QueryGrowth growth_;
  nn::Linear q_proj_ = nullptr;
  nn::Linear k_proj_ = nullptr;
  nn::Linear v_proj_ = nullptr;
  nn::Linear o_proj_ = nullptr;
};
MOONSHARD_MODULE(Ministral3Attention);

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
  QueryGrowth growth;
  growth.beta = rope.RequiredNumber("llama_4_scaling_beta", 0);
  growth.length = static_cast<double>(rope.RequiredInt("original_max_position_embeddings", 1));
  spec.layer = [config = spec.config, growth](int64_t) {
    return PreNormLayer(config, Ministral3Attention(config, growth).ptr(), GatedMlp(MlpSizesOf(config))).ptr();
  };
  return spec;
}

}  // namespace

namespace architectures {

Architecture Ministral3() { return {{"Ministral3ForCausalLM"}, "ministral3", ReadMinistral3}; }

}  // namespace architectures

}  // namespace moonshard
