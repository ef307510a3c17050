#include "engine/models/decoder_config.h"

#include <string_view>
#include <utility>

#include "engine/core/base/text.h"

namespace moonshard {
namespace {

// A missing field and one that is null differ, as in transformers: a missing field has the default of the
// architecture's class, and null is a value, which means "as many as query heads" or "derive it from the hidden size".
void ReadSizes(ConfigReader& fields, const DecoderDefaults& defaults, DecoderConfig& config) {
  config.vocab_size = fields.RequiredInt("vocab_size", 1);
  config.hidden_size = fields.RequiredInt("hidden_size", 1);
  if (defaults.has_intermediate_size) config.intermediate_size = fields.RequiredInt("intermediate_size", 1);
  config.num_hidden_layers = fields.RequiredInt("num_hidden_layers", 0);
  config.num_attention_heads = fields.RequiredInt("num_attention_heads", 1);
  const int64_t heads = config.num_attention_heads;
  const int64_t unsaid = fields.Has("num_key_value_heads") ? heads : defaults.num_key_value_heads.value_or(heads);
  config.num_key_value_heads = fields.Int("num_key_value_heads", 1).value_or(unsaid);
  const bool sound = fields.Sound({"hidden_size", "num_attention_heads", "num_key_value_heads"});
  if (sound && heads % config.num_key_value_heads != 0) {
    fields.Refuse("num_key_value_heads",
                  "num_key_value_heads must divide num_attention_heads (" + std::to_string(heads) + ")");
  }
  const bool derived = fields.Find("head_dim") == nullptr && (!defaults.head_dim || fields.Has("head_dim"));
  config.head_dim = fields.Int("head_dim", 1).value_or(derived ? config.hidden_size / heads : *defaults.head_dim);
  if (sound && derived && config.hidden_size % heads != 0) {
    fields.Refuse("hidden_size", "without a head_dim, num_attention_heads must divide hidden_size");
  }
  config.max_position_embeddings = fields.Int("max_position_embeddings", 1).value_or(defaults.max_position_embeddings);
}

void ReadPadding(ConfigReader& fields, const DecoderDefaults& defaults, DecoderConfig& config) {
  if (!fields.Sound({"vocab_size"})) return;
  config.pad_token_id = fields.Int("pad_token_id", -config.vocab_size);
  if (!fields.Has("pad_token_id")) config.pad_token_id = defaults.pad_token_id;
  if (config.pad_token_id.value_or(0) < 0) *config.pad_token_id += config.vocab_size;
  if (config.pad_token_id.value_or(0) >= config.vocab_size) {
    fields.Refuse("pad_token_id", "pad_token_id is outside the vocabulary",
                  "less than vocab_size (" + std::to_string(config.vocab_size) + ")");
  }
}

constexpr std::string_view kFull = "full_attention";
constexpr std::string_view kSliding = "sliding_attention";

}  // namespace

DecoderConfig ReadDecoder(ConfigReader& fields, const DecoderDefaults& defaults) {
  DecoderConfig config;
  ReadSizes(fields, defaults, config);
  ReadPadding(fields, defaults, config);
  config.norm_eps = fields.Number(defaults.norm_eps_name, 0).value_or(defaults.norm_eps);
  config.activation = ReadActivation(fields, defaults.activation_name, defaults.activation);
  config.attention_dropout = fields.Number("attention_dropout", 0, 1).value_or(0.0);
  config.tie_word_embeddings = fields.Bool("tie_word_embeddings").value_or(defaults.tie_word_embeddings);
  const std::string old_dtype = fields.String("torch_dtype").value_or("");
  config.dtype = fields.String("dtype").value_or(old_dtype);
  if (fields.Find("quantization_config") != nullptr) {
    fields.Refuse("quantization_config", "quantized checkpoints are not supported", "",
                  "use the checkpoint before its quantization");
  }
  if (defaults.one_rope) {
    config.kinds[0].rope = ReadRope(fields, config.head_dim, config.max_position_embeddings, defaults.rope);
  }
  config.kind_of_layer.assign(static_cast<size_t>(config.num_hidden_layers), 0);
  return config;
}

void RequireOneLayerType(ConfigReader& fields, const DecoderConfig& config) {
  const std::string expected(config.kinds[0].window ? kSliding : kFull);
  const std::optional<std::vector<std::string>> types = fields.Strings("layer_types");
  for (const std::string& type : types.value_or(std::vector<std::string>{})) {
    if (type == expected) continue;
    fields.Refuse("layer_types", "layer type '" + type + "' is not supported with the other fields of this config",
                  "'" + expected + "' for every layer");
    return;
  }
}

// Which layers slide: the list layer_types where the config has one, else the rule of the architecture. Layers get one
// of two kinds, so rotary tables and masks are made once for each kind.
void ReadSlidingLayers(ConfigReader& fields, std::optional<int64_t> window,
                       bool (*is_sliding)(int64_t layer, int64_t n), int64_t n, DecoderConfig& config) {
  const std::optional<std::vector<std::string>> types = fields.Strings("layer_types");
  if (!fields.Sound({"num_hidden_layers"})) return;
  if (types && static_cast<int64_t>(types->size()) != config.num_hidden_layers) {
    fields.Refuse("layer_types", "layer_types must have one entry for each layer",
                  std::to_string(config.num_hidden_layers) + " entries");
    return;
  }
  bool any = false;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const size_t at = static_cast<size_t>(layer);
    if (types && (*types)[at] != kFull && (*types)[at] != kSliding) {
      fields.Refuse("layer_types", "layer type '" + (*types)[at] + "' is not supported",
                    "full_attention or sliding_attention");
      return;
    }
    const bool slides = types ? (*types)[at] == kSliding : window && is_sliding(layer, n);
    config.kind_of_layer[at] = slides ? 1 : 0;
    any = any || slides;
  }
  if (any && !window) {
    fields.Refuse("layer_types", "a layer has sliding attention, but the config has no window", "",
                  "set sliding_window, and use_sliding_window if the architecture has this field");
  }
  config.kinds.push_back({config.kinds[0].rope, window});
}

void ReadWindowOfLastLayers(ConfigReader& fields, DecoderConfig& config) {
  const int64_t full_layers = fields.Int("max_window_layers", 0).value_or(28);
  std::optional<int64_t> window = fields.Int("sliding_window", 1);
  if (!fields.Has("sliding_window")) window = 4096;  // null means none
  if (!fields.Bool("use_sliding_window").value_or(false)) window.reset();
  ReadSlidingLayers(
      fields, window, [](int64_t layer, int64_t full) { return layer >= full; }, full_layers, config);
}

void ReadUnappliedDropout(ConfigReader& fields, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (fields.Number(name, 0).value_or(0) == 0) continue;
    fields.Refuse(name, "'" + name + "' is not applied: the model computes without it, as in eval()", "0");
    fields.diagnostics().back().severity = Severity::kWarning;
  }
}

// Fields without an effect on the logits. Sorted, for a binary search.
const std::vector<std::string>& NeutralFields() {
  static const std::vector<std::string> fields = Split(
      "_name_or_path add_cross_attention architectures auto_map bad_words_ids begin_suppress_tokens bos_token_id "
      "chunk_size_feed_forward cross_attention_hidden_size decoder_start_token_id eos_token_id finetuning_task "
      "id2label "
      "initializer_range is_decoder is_encoder_decoder label2id model_type output_attentions output_hidden_states "
      "prefix pretraining_tp problem_type pruned_heads return_dict tokenizer_class torchscript transformers_version "
      "use_cache",
      ' ');
  return fields;
}

// Fields that change the logits in some architecture: one that is not read is a warning in the others. Sorted.
const std::vector<std::string>& MeaningfulFields() {
  static const std::vector<std::string> fields = Split(
      "attention_bias attn_logit_softcapping final_logit_softcapping head_dim layer_types mlp_bias num_experts "
      "num_local_experts partial_rotary_factor qk_layernorm query_pre_attn_scalar sliding_window use_sliding_window",
      ' ');
  return fields;
}

}  // namespace moonshard
