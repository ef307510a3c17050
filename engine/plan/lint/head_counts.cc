#include "engine/plan/lint/head_counts.h"

#include <algorithm>

namespace moonshard {
namespace {

int64_t NumberAt(const JsonValue& config, const char* key) {
  const JsonValue* value = config.Find(key);
  return value != nullptr && value->is_int() && value->AsInt() > 0 ? value->AsInt() : 0;
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
  const int64_t heads = NumberAt(config, "num_attention_heads");
  const int64_t hidden = NumberAt(config, "hidden_size");
  int64_t head_size = NumberAt(config, "head_dim");
  if (head_size == 0 && heads > 0 && hidden % heads == 0) head_size = hidden / heads;
  const auto add = [&](int64_t key_heads, int64_t size, const char* key) {
    if (heads == 0 || key_heads == 0 || size == 0 || hidden == 0 || heads % key_heads != 0) return;
    HeadCount reading = {heads, key_heads, size, hidden, prefix + key};
    if (std::ranges::find(readings_, reading) == readings_.end()) readings_.push_back(std::move(reading));
  };
  const JsonValue* declared = config.Find("num_key_value_heads");
  const bool missing = declared == nullptr || declared->is_null();
  const int64_t key_heads = missing ? heads : NumberAt(config, "num_key_value_heads");
  const char* key = missing ? "num_attention_heads" : "num_key_value_heads";
  add(key_heads, head_size, key);
  const int64_t global_size = NumberAt(config, "global_head_dim");
  const int64_t global_heads = NumberAt(config, "num_global_key_value_heads");
  if (global_size > 0) add(key_heads, global_size, key);
  if (global_heads > 0) add(global_heads, global_size > 0 ? global_size : head_size, "num_global_key_value_heads");
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
