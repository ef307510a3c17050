// A number keeps the Lua expression that gives it. "config.num_attention_heads" in the text makes the plan valid for
// every size of the model; a literal appears only where the shapes have a value that config.json does not. The names
// are those of the configurations in use, the usual ones first. A model with several towers has its numbers in a
// section about the text, a model of an encoder and a decoder in one for each; a section is used only if the top level
// has no head count. A stack of layers whose path names another section has the numbers of that one: the heads of the
// decoder may divide the features of another stack without being its heads.
#include "dsl/planning/suggest/numbers.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <span>
#include <string_view>

#include "engine/core/base/text.h"

namespace moonshard {
namespace {

using Names = std::initializer_list<const char*>;

constexpr Names kHeads = {
    "num_attention_heads",     "n_head",           "n_heads", "num_heads", "attention_heads", "decoder_attention_heads",
    "encoder_attention_heads", "resampler_n_heads"};

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
  const JsonValue* decoder = config.Find("decoder");
  return decoder != nullptr && decoder->is_object() && FirstOf(*decoder, "", kHeads).known() ? "decoder" : "";
}

// Whether one of the layers' gates has an activation that keeps only the features above a quantile of all of them.
bool HasSparseGate(const JsonValue& fields) {
  const JsonValue* pattern = fields.Find("activation_sparsity_pattern");
  const auto positive = [](const JsonValue& value) { return value.is_number() && value.AsDouble() > 0; };
  if (pattern == nullptr) return false;
  return pattern->is_array() ? std::ranges::any_of(pattern->AsArray(), positive) : positive(*pattern);
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
  out.head_dim = first({"head_dim", "attention_head_dim", "kv_channels", "d_kv", "resampler_head_dim"});
  out.wide = first({"intermediate_size", "ffn_hidden_size", "ffn_dim", "n_inner", "d_ff", "mlp_hidden_size", "ff_dim"});
  out.expert_wide =
      first({"moe_intermediate_size", "expert_intermediate_size", "moe_ffn_hidden_size", "expert_ffn_hidden_size"});
  out.experts = first({"num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"});
  out.kv_latent = first({"kv_lora_rank"});
  out.rotary_dim = IntOf(fields, "qk_rope_head_dim");
  out.sparse_gate = HasSparseGate(fields);
  if (const JsonValue* type = fields.Find("model_type"); type != nullptr && type->is_string())
    out.model_type = type->AsString();
  return out;
}

// Whether a component of a path is `name`, or has it between underscores.
bool HasWord(const std::string& component, const std::string& name) {
  return ("_" + component + "_").find("_" + name + "_") != std::string::npos;
}

// The field whose name, without "_config", is the longest in the first component of the path that has one; "": none.
std::string SectionNaming(const JsonValue& config, const std::string& path) {
  std::string found;
  size_t longest = 0;
  for (const std::string& component : Split(path, '.')) {
    for (const auto& [field, value] : config.AsObject()) {
      const bool section = field.ends_with("_config");
      if (!value.is_object() || (!section && field != "encoder" && field != "decoder")) continue;
      const std::string name = section ? field.substr(0, field.size() - std::string_view("_config").size()) : field;
      if (name.size() <= longest || !HasWord(component, name)) continue;
      longest = name.size();
      found = field;
    }
    if (longest > 0) break;
  }
  return found;
}

void AddTypes(const JsonValue& fields, std::set<std::string>& types) {
  if (!fields.is_object()) return;
  for (const auto& [name, value] : fields.AsObject()) {
    if (name == "model_type" && value.is_string()) types.insert(value.AsString());
    AddTypes(value, types);
  }
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

std::set<std::string> ReadTypes(const ModelConfig& config) {
  std::set<std::string> types;
  AddTypes(config.json(), types);
  return types;
}

std::optional<ModelNumbers> ReadNumbersOfStack(const ModelConfig& config, const std::string& path) {
  const std::string known = SectionOf(config.json());
  const std::string naming = SectionNaming(config.json(), path);
  if (naming == known && !known.empty()) return std::nullopt;
  if (!naming.empty()) {
    const JsonValue* fields = config.Get(naming);
    std::string name = "config." + naming;
    const JsonValue* text = fields->Find("text_config");
    if (text != nullptr && text->is_object() && !FirstOf(*fields, "", kHeads).known()) {
      fields = text;
      name += ".text_config";
    }
    ModelNumbers out = NumbersIn(*fields, name);
    if (out.model_type.empty()) out.model_type = config.model_type();
    return out.heads.known() ? std::optional(out) : std::nullopt;
  }
  const JsonValue& fields = known.empty() ? config.json() : *config.Get(known);
  for (const std::string& component : Split(path, '.')) {
    const std::string heads = component + "_attention_heads";
    const std::string wide = component + "_ffn_dim";
    if ((component != "encoder" && component != "decoder") || IntOf(fields, heads.c_str()) == 0) continue;
    ModelNumbers out = ReadNumbers(config);
    out.heads = FirstOf(fields, known.empty() ? "config" : "text", {heads.c_str()});
    if (IntOf(fields, wide.c_str()) > 0) out.wide = FirstOf(fields, known.empty() ? "config" : "text", {wide.c_str()});
    return out;
  }
  return std::nullopt;
}

std::optional<ModelNumbers> ReadTowerNumbers(const ModelConfig& config, bool hears) {
  constexpr std::array kHears = {"audio_config", "encoder_config"};
  constexpr std::array kSees = {"vision_config"};
  for (const char* section : hears ? std::span<const char* const>(kHears) : std::span<const char* const>(kSees)) {
    for (const std::string around : {"", "encoder."}) {
      const JsonValue* holder = around.empty() ? &config.json() : config.Get("encoder");
      const JsonValue* fields = holder != nullptr && holder->is_object() ? holder->Find(section) : nullptr;
      if (fields == nullptr || !fields->is_object()) continue;
      const std::string name = "config." + around + section;
      ModelNumbers out = NumbersIn(*fields, name);
      if (out.model_type.empty()) out.model_type = config.model_type();
      // Where both are there, hidden_size is that of the decoder, for which the tower's last projection makes its
      // features.
      if (const Number width = FirstOf(*fields, name, {"embed_dim"}); width.known()) out.hidden = width;
      if (out.heads.known() && out.hidden.known()) return out;
    }
  }
  return std::nullopt;
}

}  // namespace moonshard
