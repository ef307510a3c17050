#include "engine/plan/lint/head_counts.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

namespace moonshard {
namespace {

int64_t NumberAt(const JsonValue& config, const char* key) {
  const JsonValue* value = config.Find(key);
  return value != nullptr && value->is_int() && value->AsInt() > 0 ? value->AsInt() : 0;
}

// The names of one field in the configs in use, the usual one first.
constexpr auto kHeadNames =
    std::to_array<const char*>({"num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads",
                                "decoder_attention_heads", "encoder_attention_heads"});
constexpr auto kKeyHeadNames =
    std::to_array<const char*>({"num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_head_kv", "num_query_groups"});
constexpr auto kHeadSizeNames = std::to_array<const char*>({"head_dim", "attention_head_dim", "kv_channels", "d_kv"});
constexpr auto kHiddenNames =
    std::to_array<const char*>({"hidden_size", "n_embd", "d_model", "dim", "model_dim", "embed_dim", "emb_dim"});

struct Field {
  const char* name;
  int64_t value;
};

std::vector<Field> FieldsOf(const JsonValue& config, std::span<const char* const> names) {
  std::vector<Field> out;
  for (const char* name : names) {
    if (const int64_t value = NumberAt(config, name); value > 0) out.push_back({name, value});
  }
  return out;
}

// Whether the number of key heads is declared in another form than one number (a list, one for each layer).
bool IsUnreadable(const JsonValue& config) {
  return std::ranges::any_of(kKeyHeadNames, [&](const char* name) {
    const JsonValue* value = config.Find(name);
    return value != nullptr && !value->is_null() && NumberAt(config, name) == 0;
  });
}

// The one that passes, if all that pass have the same numbers of heads.
template <class Passes>
std::optional<HeadCount> OneOf(const std::vector<HeadCount>& readings, const Passes& passes) {
  std::optional<HeadCount> out;
  for (const HeadCount& reading : readings) {
    if (!passes(reading)) continue;
    if (out && (out->heads != reading.heads || out->key_heads != reading.key_heads)) return std::nullopt;
    if (!out) out = reading;
  }
  return out;
}

}  // namespace

HeadCounts::HeadCounts(const JsonValue& config) { Read(config, ""); }

void HeadCounts::Read(const JsonValue& config, const std::string& prefix) {
  const std::vector<Field> sizes = FieldsOf(config, kHiddenNames);
  const std::vector<Field> declared_keys = FieldsOf(config, kKeyHeadNames);
  const std::vector<Field> declared_sizes = FieldsOf(config, kHeadSizeNames);
  const int64_t global_size = NumberAt(config, "global_head_dim");
  const int64_t global_heads = NumberAt(config, "num_global_key_value_heads");
  for (const Field& heads : FieldsOf(config, kHeadNames)) {
    for (const Field& hidden : sizes) {
      const auto add = [&](const Field& keys, int64_t size) {
        if (size == 0 || heads.value % keys.value != 0) return;
        HeadCount reading = {heads.value, keys.value, size, hidden.value, prefix + heads.name, prefix + keys.name};
        if (std::ranges::find(readings_, reading) == readings_.end()) readings_.push_back(std::move(reading));
      };
      std::vector<int64_t> head_sizes;
      for (const Field& size : declared_sizes) head_sizes.push_back(size.value);
      if (head_sizes.empty() && hidden.value % heads.value == 0) head_sizes.push_back(hidden.value / heads.value);
      const std::vector<Field> keys =
          declared_keys.empty() && !IsUnreadable(config) ? std::vector<Field>{heads} : declared_keys;
      for (const Field& key : keys) {
        for (int64_t size : head_sizes) add(key, size);
        if (global_size > 0) add(key, global_size);
      }
      if (global_heads == 0) continue;
      const Field global = {"num_global_key_value_heads", global_heads};
      if (global_size > 0) add(global, global_size);
      for (int64_t size : head_sizes) {
        if (global_size == 0) add(global, size);
      }
    }
  }
  for (const std::string& name : config.Keys()) {
    if (name.ends_with("config")) Read(*config.Find(name), prefix + name + ".");
  }
}

std::optional<HeadCount> HeadCounts::Of(int64_t hidden, int64_t query_features, int64_t key_features) const {
  return OneOf(readings_, [&](const HeadCount& reading) {
    const int64_t queries = reading.heads * reading.head_size;
    return hidden == reading.hidden && (query_features == queries || query_features == 2 * queries) &&
           key_features == reading.key_heads * reading.head_size;
  });
}

std::optional<HeadCount> HeadCounts::OfFused(int64_t hidden, int64_t features) const {
  return OneOf(readings_, [&](const HeadCount& reading) {
    return hidden == reading.hidden && features == (reading.heads + 2 * reading.key_heads) * reading.head_size;
  });
}

}  // namespace moonshard
