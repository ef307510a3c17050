#include "engine/models/decoder_config.h"

#include <algorithm>
#include <string_view>

#include "engine/base/text.h"
#include "engine/models/config_reader.h"
#include "engine/models/rope_config.h"

namespace moonshard {
namespace {

constexpr std::string_view kLlama = "LlamaForCausalLM";
constexpr std::string_view kMistral = "MistralForCausalLM";

// Fields that ParseDecoderConfig reads, or that mean nothing for logits, loss and gradients of given token ids. Sorted.
const std::vector<std::string>& KnownFields() {
  static const std::vector<std::string> fields = Split(
      "_name_or_path add_cross_attention architectures attention_bias attention_dropout auto_map "
      "bad_words_ids begin_suppress_tokens bos_token_id chunk_size_feed_forward "
      "cross_attention_hidden_size decoder_start_token_id dtype eos_token_id finetuning_task head_dim "
      "hidden_act hidden_size id2label initializer_range intermediate_size is_decoder is_encoder_decoder "
      "label2id layer_types max_position_embeddings mlp_bias model_type num_attention_heads "
      "num_hidden_layers num_key_value_heads original_max_position_embeddings output_attentions "
      "output_hidden_states pad_token_id partial_rotary_factor prefix pretraining_tp problem_type "
      "pruned_heads quantization_config return_dict rms_norm_eps rope_parameters rope_scaling rope_theta "
      "sliding_window tie_word_embeddings tokenizer_class torch_dtype torchscript transformers_version "
      "use_cache vocab_size",
      ' ');
  return fields;
}

std::optional<Activation> ActivationOf(std::string_view name) {
  if (name == "silu" || name == "swish") return Activation::kSilu;
  if (name == "gelu") return Activation::kGelu;
  if (name == "gelu_pytorch_tanh" || name == "gelu_new") return Activation::kGeluTanh;
  if (name == "relu") return Activation::kRelu;
  return std::nullopt;
}

// The first of `architectures`, else what model_type stands for.
std::string ArchitectureOf(const JsonValue& config) {
  const JsonValue* list = config.Find("architectures");
  if (list != nullptr && list->is_array() && !list->AsArray().empty() && list->AsArray()[0].is_string()) {
    return list->AsArray()[0].AsString();
  }
  const JsonValue* type = config.Find("model_type");
  if (type != nullptr && type->is_string()) {
    if (type->AsString() == "llama") return std::string(kLlama);
    if (type->AsString() == "mistral") return std::string(kMistral);
    return type->AsString();
  }
  return {};
}

class Parser {
 public:
  Parser(const JsonValue& json, std::string file)
      : json_(json), file_(std::move(file)), fields_(json, file_, "", diagnostics_) {}

  Result<DecoderConfig> Run() {
    if (!json_.is_object()) {
      fields_.Refuse("", std::string("the config is of kind ") + json_.KindName(), "an object");
      return diagnostics_;
    }
    config_.architecture = ArchitectureOf(json_);
    const std::vector<std::string>& known = DecoderArchitectures();
    if (!std::binary_search(known.begin(), known.end(), config_.architecture)) {
      fields_.Refuse("architectures",
                     "architecture '" + config_.architecture + "' has no reference implementation here",
                     Join(known, " or "));
      return diagnostics_;
    }
    ReadSizes();
    ReadRest();
    ReadWindow();
    ReadLayerTypes();
    config_.rope = ParseRopeConfig(json_, config_.max_position_embeddings, file_, diagnostics_);
    NameUnknownFields();
    return {std::move(config_), std::move(diagnostics_)};
  }

 private:
  bool is_mistral() const { return config_.architecture == kMistral; }

  void ReadSizes() {
    config_.vocab_size = fields_.RequiredInt("vocab_size", 1);
    config_.hidden_size = fields_.RequiredInt("hidden_size", 1);
    config_.intermediate_size = fields_.RequiredInt("intermediate_size", 1);
    config_.num_hidden_layers = fields_.RequiredInt("num_hidden_layers", 0);
    config_.num_attention_heads = fields_.RequiredInt("num_attention_heads", 1);
    const int64_t heads = config_.num_attention_heads;
    config_.num_key_value_heads = fields_.Int("num_key_value_heads", 1).value_or(heads);
    if (heads % config_.num_key_value_heads != 0) {
      fields_.Refuse("num_key_value_heads",
                     "num_key_value_heads must divide num_attention_heads (" + std::to_string(heads) + ")");
    }
    config_.head_dim = fields_.Int("head_dim", 1).value_or(config_.hidden_size / heads);
    if (fields_.Find("head_dim") == nullptr && config_.hidden_size % heads != 0) {
      fields_.Refuse("hidden_size", "without a head_dim, num_attention_heads must divide hidden_size");
    }
    if (config_.head_dim % 2 != 0) {
      fields_.Refuse("head_dim",
                     "rotary position embedding needs an even head_dim, not " + std::to_string(config_.head_dim));
    }
    config_.max_position_embeddings = fields_.Int("max_position_embeddings", 1).value_or(is_mistral() ? 131072 : 2048);
  }

  void ReadRest() {
    config_.rms_norm_eps = fields_.Number("rms_norm_eps", 0).value_or(1e-6);
    config_.attention_dropout = fields_.Number("attention_dropout", 0).value_or(0.0);
    config_.tie_word_embeddings = fields_.Bool("tie_word_embeddings").value_or(false);
    config_.attention_bias = fields_.Bool("attention_bias").value_or(false);
    config_.mlp_bias = fields_.Bool("mlp_bias").value_or(false);
    if (is_mistral()) {
      if (config_.attention_bias) Unused("attention_bias");
      if (config_.mlp_bias) Unused("mlp_bias");
      config_.attention_bias = config_.mlp_bias = false;
    }
    const std::string activation = fields_.String("hidden_act").value_or("silu");
    if (const std::optional<Activation> known = ActivationOf(activation)) {
      config_.hidden_act = *known;
    } else {
      fields_.Refuse("hidden_act", "activation '" + activation + "' is not computed here",
                     "silu, swish, gelu, gelu_new, gelu_pytorch_tanh or relu");
    }
    config_.pad_token_id = fields_.Int("pad_token_id", -config_.vocab_size);
    if (config_.pad_token_id.value_or(0) < 0) *config_.pad_token_id += config_.vocab_size;
    if (config_.pad_token_id.value_or(0) >= config_.vocab_size) {
      fields_.Refuse("pad_token_id", "pad_token_id is outside the vocabulary",
                     "less than vocab_size (" + std::to_string(config_.vocab_size) + ")");
    }
    config_.dtype = fields_.String("dtype").value_or(fields_.String("torch_dtype").value_or(""));
    if (fields_.Find("quantization_config") != nullptr) {
      fields_.Refuse("quantization_config", "quantized checkpoints are not computed here", "",
                     "use the checkpoint that it was quantized from");
    }
  }

  void ReadWindow() {
    config_.sliding_window = fields_.Int("sliding_window", 1);
    if (!is_mistral()) {
      if (config_.sliding_window) Unused("sliding_window");
      config_.sliding_window.reset();
    } else if (json_.Find("sliding_window") == nullptr) {
      config_.sliding_window = 4096;  // transformers' default; null means none
    }
  }

  void ReadLayerTypes() {
    const JsonValue* types = fields_.Find("layer_types");
    if (types == nullptr) return;
    const std::string expected = config_.sliding_window ? "sliding_attention" : "full_attention";
    bool same = types->is_array();
    if (same) {
      for (const JsonValue& type : types->AsArray()) same = same && type.is_string() && type.AsString() == expected;
    }
    if (!same) {
      fields_.Refuse("layer_types", "layers that differ in their attention are not computed here",
                     "'" + expected + "' for every layer");
    }
  }

  // transformers does not read the field either: say so and go on.
  void Unused(std::string_view name) {
    fields_.Refuse(name, config_.architecture + " does not use config field '" + std::string(name) + "'");
    diagnostics_.back().severity = Severity::kWarning;
  }

  void NameUnknownFields() {
    const std::vector<std::string>& known = KnownFields();
    for (const std::string& name : json_.Keys()) {
      if (std::binary_search(known.begin(), known.end(), name)) continue;
      Unused(name);
      diagnostics_.back().help = DidYouMean(name, known, 0);
      if (diagnostics_.back().help.empty()) diagnostics_.back().severity = Severity::kNote;
    }
  }

  const JsonValue& json_;
  std::string file_;
  Diagnostics diagnostics_;
  ConfigReader fields_;
  DecoderConfig config_;
};

}  // namespace

const std::vector<std::string>& DecoderArchitectures() {
  static const std::vector<std::string> architectures = {std::string(kLlama), std::string(kMistral)};
  return architectures;
}

Result<DecoderConfig> ParseDecoderConfig(const JsonValue& config, const std::string& file_name) {
  return Parser(config, file_name).Run();
}

}  // namespace moonshard
