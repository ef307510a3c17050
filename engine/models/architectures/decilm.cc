// DeciLM as Nemotron-NAS uses it: Llama's layer, but each layer is what a search found best for it. Its attention has
// its own number of key heads, is one linear map, or is missing; its MLP has its own width, is one linear map, or is
// missing.
//
//   model.layers.N.{input_layernorm, self_attn.{q,k,v,o}_proj | self_attn.linear_attn,
//                   post_attention_layernorm, mlp.{gate,up,down}_proj | mlp.linear_mlp}
#include "engine/models/architecture.h"

namespace moonshard {
namespace {

constexpr int64_t kWidthStep = 256;
constexpr double kMostTimes = 1024;  // hidden sizes in the width of an MLP

// One half of a layer.
struct Part {
  enum class Kind { kUsual, kLinear, kMissing };
  Kind kind = Kind::kUsual;
  int64_t size = 0;  // queries per key head, or the width of the MLP
};

struct Block {
  Part attention;
  Part ffn;
};

class LinearAttentionImpl : public SequenceBlock {
 public:
  LinearAttentionImpl(int64_t size, bool bias) {
    linear_ = register_module("linear_attn", MakeLinear(size, size, bias));
  }
  at::Tensor forward(const at::Tensor& hidden, const LayerContext& /*context*/) override { return linear_(hidden); }

 private:
  nn::Linear linear_ = nullptr;
};
MOONSHARD_MODULE(LinearAttention);

class LinearMlpImpl : public torch::nn::Module {
 public:
  LinearMlpImpl(int64_t size, bool bias) { linear_ = register_module("linear_mlp", MakeLinear(size, size, bias)); }
  at::Tensor forward(const at::Tensor& hidden) { return linear_(hidden); }

 private:
  nn::Linear linear_ = nullptr;
};
MOONSHARD_MODULE(LinearMlp);

Part ReadKind(ConfigReader& fields) {
  Part part;
  const bool missing = fields.Bool("no_op").value_or(false);
  const bool linear = fields.Bool("replace_with_linear").value_or(false);
  if (missing) part.kind = Part::Kind::kMissing;
  if (linear) part.kind = Part::Kind::kLinear;
  if (missing && linear)
    fields.Refuse("no_op", "no_op and replace_with_linear are both true; only one of them can apply");
  if (fields.Find("sparsify") != nullptr) fields.Refuse("sparsify", "sparse weights are not supported", "null");
  return part;
}

Part ReadAttention(ConfigReader fields, const DecoderConfig& config) {
  Part part = ReadKind(fields);
  for (const char* name : {"window_length", "num_sink_tokens"}) {
    if (fields.Find(name) != nullptr)
      fields.Refuse(name, "a window or attention sinks of a single layer are not supported", "null");
  }
  for (const char* name : {"unshifted_sink", "use_prefill_window_in_sink_attention"}) fields.Find(name);
  fields.Find("n_heads_in_group");
  if (part.kind == Part::Kind::kUsual) {
    part.size = fields.RequiredInt("n_heads_in_group", 1);
    if (config.num_attention_heads % part.size != 0) {
      fields.Refuse("n_heads_in_group", "n_heads_in_group must divide num_attention_heads (" +
                                            std::to_string(config.num_attention_heads) + ")");
    }
  }
  fields.NameUnread("attention", {}, fields.json().Keys());
  return part;
}

Part ReadFfn(ConfigReader fields, const DecoderConfig& config) {
  Part part = ReadKind(fields);
  const std::optional<double> times = fields.Number("ffn_mult", 0, kMostTimes);
  const std::optional<int64_t> width = fields.Int("intermediate_size", 1);
  fields.Find("hidden_act");
  if (part.kind == Part::Kind::kUsual) {
    // The width that ffn_mult means: two thirds of that many hidden sizes, rounded up to full steps.
    const auto exact = static_cast<int64_t>(2 * times.value_or(0) * static_cast<double>(config.hidden_size) / 3);
    part.size = width.value_or((exact + kWidthStep - 1) / kWidthStep * kWidthStep);
    if (part.size == 0) fields.Refuse("ffn_mult", "an MLP requires ffn_mult or intermediate_size");
  }
  fields.NameUnread("ffn", {}, fields.json().Keys());
  return part;
}

std::vector<Block> ReadBlocks(ConfigReader& fields, const DecoderConfig& config) {
  const JsonValue* found = fields.Find("block_configs");
  if (!fields.Sound({"hidden_size", "num_attention_heads", "num_hidden_layers"})) return {};
  const auto layers = static_cast<size_t>(config.num_hidden_layers);
  if (found == nullptr || !found->is_array() || found->AsArray().size() != layers) {
    fields.Refuse("block_configs", "block_configs must describe each layer of a Nemotron-NAS model",
                  "a list of " + std::to_string(layers) + " objects");
    return {};
  }
  std::vector<Block> blocks;
  for (size_t i = 0; i < layers; ++i) {
    ConfigReader block(found->AsArray()[i], fields.file(), "block_configs[" + std::to_string(i) + "].",
                       fields.diagnostics());
    blocks.push_back({ReadAttention(block.Object("attention"), config), ReadFfn(block.Object("ffn"), config)});
    if (block.Find("parallel_blocks") != nullptr) {
      block.Refuse("parallel_blocks", "parallel blocks are not supported", "null");
    }
    block.NameUnread("block", {}, block.json().Keys());
  }
  return blocks;
}

std::shared_ptr<SequenceBlock> MakeAttention(const Part& part, DecoderConfig config, bool bias) {
  if (part.kind == Part::Kind::kMissing) return nullptr;
  if (part.kind == Part::Kind::kLinear) return LinearAttention(config.hidden_size, bias).ptr();
  config.num_key_value_heads = config.num_attention_heads / part.size;
  return Attention(config, AttentionOptions{.qkv_bias = bias, .output_bias = bias}).ptr();
}

UnaryModule MakeMlp(const Part& part, DecoderConfig config, bool bias) {
  if (part.kind == Part::Kind::kMissing) return {};
  if (part.kind == Part::Kind::kLinear) return LinearMlp(config.hidden_size, bias);
  config.intermediate_size = part.size;
  return GatedMlp(MlpSizesOf(config, bias));
}

DecoderSpec ReadDeciLm(ConfigReader& fields, const std::string& /*name*/) {
  DecoderDefaults defaults;
  defaults.has_intermediate_size = false;
  DecoderSpec spec;
  if (const std::string type = fields.String("model_type").value_or("nemotron-nas"); type != "nemotron-nas") {
    fields.Refuse("model_type", "only the Nemotron-NAS variant of DeciLM is supported, not '" + type + "'",
                  "nemotron-nas, with block_configs");
    return spec;
  }
  const DecoderConfig& config = spec.config = ReadDecoder(fields, defaults);
  RequireOneLayerType(fields, config);
  if (fields.Find("num_key_value_heads") != nullptr) fields.WarnUnused("num_key_value_heads", "Nemotron-NAS");
  fields.WarnUnused("intermediate_size", "Nemotron-NAS");
  const bool attention_bias = fields.Bool("attention_bias").value_or(false);
  const bool mlp_bias = fields.Bool("mlp_bias").value_or(false);
  const std::vector<Block> blocks = ReadBlocks(fields, config);
  spec.layer = [config, blocks, attention_bias, mlp_bias](int64_t index) {
    const Block& block = blocks[static_cast<size_t>(index)];
    return PreNormLayer(config, MakeAttention(block.attention, config, attention_bias),
                        MakeMlp(block.ffn, config, mlp_bias))
        .ptr();
  };
  return spec;
}

}  // namespace

namespace architectures {

Architecture Decilm() { return {{"DeciLMForCausalLM"}, "nemotron-nas", ReadDeciLm}; }

}  // namespace architectures

}  // namespace moonshard
