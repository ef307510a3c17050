// A number keeps the Lua expression that gives it. "config.num_attention_heads" in the text makes the plan valid for
// every size of the model; a literal appears only where the shapes have a value that config.json does not. The names
// are those of the configurations in use, the usual ones first. A model with several towers has its numbers in a
// section about the text; a section is used only if the top level has no head count.
#include "dsl/planning/suggest/numbers.h"

#include <array>
#include <initializer_list>
#include <span>

namespace moonshard {
namespace {

using Names = std::initializer_list<const char*>;

constexpr Names kHeads = {
    "num_attention_heads",    "n_head", "n_heads", "num_heads", "attention_heads", "decoder_attention_heads",
    "encoder_attention_heads"};

int64_t IntOf(const JsonValue& object, const char* name) {
  const JsonValue* field = object.Find(name);
  return field != nullptr && field->is_int() && field->AsInt() > 0 ? field->AsInt() : 0;
}

Number FirstOf(const JsonValue& object, const std::string& name_of_object, const Names& names) {
  for (const char* name : names) {
    if (const int64_t value = IntOf(object, name); value > 0) return {value, name_of_object + "." + name};
  }
  return {};
}

// The part of the config that has heads: itself, or the object about the text.
std::string SectionOf(const JsonValue& config) {
  if (FirstOf(config, "", kHeads).known()) return "";
  for (const char* name : {"text_config", "llm_config", "language_config", "thinker_config"}) {
    const JsonValue* section = config.Find(name);
    if (section != nullptr && section->is_object()) return name;
  }
  return "";
}

// `name`: of the object in Lua.
ModelNumbers NumbersIn(const JsonValue& fields, const std::string& name) {
  ModelNumbers out;
  const auto first = [&](const Names& names) { return FirstOf(fields, name, names); };
  out.hidden = first({"hidden_size", "n_embd", "d_model", "dim", "model_dim", "embed_dim", "emb_dim"});
  out.vocabulary = first({"vocab_size", "padded_vocab_size", "n_vocab", "n_words"});
  out.heads = first(kHeads);
  out.kv_heads = first(
      {"num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_head_kv", "num_query_groups", "multi_query_group_num"});
  out.head_dim = first({"head_dim", "attention_head_dim", "kv_channels", "d_kv"});
  out.wide = first({"intermediate_size", "ffn_hidden_size", "ffn_dim", "n_inner", "d_ff", "mlp_hidden_size", "ff_dim"});
  out.expert_wide = first({"moe_intermediate_size", "expert_intermediate_size", "moe_ffn_hidden_size"});
  out.experts = first({"num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"});
  out.kv_latent = first({"kv_lora_rank"});
  out.rotary_dim = IntOf(fields, "qk_rope_head_dim");
  if (const JsonValue* type = fields.Find("model_type"); type != nullptr && type->is_string())
    out.model_type = type->AsString();
  return out;
}

}  // namespace

Number Literal(int64_t value) { return {value, std::to_string(value)}; }

ModelNumbers ReadNumbers(const ModelConfig& config) {
  const std::string section = SectionOf(config.json());
  ModelNumbers out =
      section.empty() ? NumbersIn(config.json(), "config") : NumbersIn(*config.json().Find(section), "text");
  out.section = section;
  if (out.model_type.empty()) out.model_type = config.model_type();
  return out;
}

std::optional<ModelNumbers> ReadTowerNumbers(const ModelConfig& config, bool hears) {
  constexpr std::array kHears = {"audio_config", "encoder_config"};
  constexpr std::array kSees = {"vision_config"};
  for (const char* section : hears ? std::span<const char* const>(kHears) : std::span<const char* const>(kSees)) {
    const JsonValue* fields = config.Get(section);
    if (fields == nullptr || !fields->is_object()) continue;
    ModelNumbers out = NumbersIn(*fields, std::string("config.") + section);
    if (out.model_type.empty()) out.model_type = config.model_type();
    // Where both are there, hidden_size is that of the decoder, for which the tower's last projection makes its
    // features.
    if (const Number width = FirstOf(*fields, std::string("config.") + section, {"embed_dim"}); width.known())
      out.hidden = width;
    if (out.heads.known() && out.hidden.known()) return out;
  }
  return std::nullopt;
}

}  // namespace moonshard
