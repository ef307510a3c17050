#include "engine/io/config/config_ranges.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

namespace moonshard {
namespace {

constexpr int64_t kMostLayers = 1024;
constexpr int64_t kMostHeads = int64_t{1} << 16;
constexpr int64_t kMostExperts = int64_t{1} << 14;
constexpr int64_t kMostFeatures = int64_t{1} << 20;
constexpr int64_t kMostInner = int64_t{1} << 22;
constexpr int64_t kMostVocabulary = int64_t{1} << 27;

constexpr std::array kRanges = {
    ConfigRange{"d_ff", kMostInner},
    ConfigRange{"d_model", kMostFeatures},
    ConfigRange{"ffn_dim", kMostInner},
    ConfigRange{"ffn_hidden_size", kMostInner},
    ConfigRange{"head_dim", kMostHeads},
    ConfigRange{"hidden_size", kMostFeatures},
    ConfigRange{"intermediate_size", kMostInner},
    ConfigRange{"moe_intermediate_size", kMostInner},
    ConfigRange{"n_embd", kMostFeatures},
    ConfigRange{"n_head", kMostHeads},
    ConfigRange{"n_heads", kMostHeads},
    ConfigRange{"n_heads_in_group", kMostHeads},
    ConfigRange{"n_inner", kMostInner},
    ConfigRange{"n_layer", kMostLayers},
    ConfigRange{"n_layers", kMostLayers},
    ConfigRange{"n_routed_experts", kMostExperts},
    ConfigRange{"num_attention_heads", kMostHeads},
    ConfigRange{"num_experts", kMostExperts},
    ConfigRange{"num_experts_per_tok", kMostExperts},
    ConfigRange{"num_heads", kMostHeads},
    ConfigRange{"num_hidden_layers", kMostLayers},
    ConfigRange{"num_key_value_heads", kMostHeads},
    ConfigRange{"num_layers", kMostLayers},
    ConfigRange{"num_local_experts", kMostExperts},
    ConfigRange{"shared_expert_intermediate_size", kMostInner},
    ConfigRange{"vocab_size", kMostVocabulary},
};

void CheckObject(const JsonValue& object, const std::string& prefix, const std::string& file_name, Diagnostics& found) {
  for (const ConfigRange& range : kRanges) {
    const JsonValue* value = object.Find(range.field);
    const bool above =
        value != nullptr && value->is_number() &&
        (value->is_int() ? value->AsInt() > range.most : !(value->AsDouble() <= static_cast<double>(range.most)));
    if (!above) continue;
    const std::string name = prefix + std::string(range.field);
    Diagnostic d = MakeDiagnostic(Finding::kUnsupportedModel, "config field '" + name + "' is out of range");
    d.where.file = file_name;
    d.path = name;
    d.declared = WriteJson(*value, 0);
    d.required = "at most " + std::to_string(range.most);
    found.push_back(std::move(d));
  }
}

}  // namespace

std::span<const ConfigRange> ConfigRanges() { return kRanges; }

int64_t MostOf(std::string_view field) {
  const auto* const found = std::ranges::find(kRanges, field, &ConfigRange::field);
  return found == kRanges.end() ? std::numeric_limits<int32_t>::max() : found->most;
}

Diagnostics CheckConfigRanges(const JsonValue& config, const std::string& file_name) {
  Diagnostics found;
  CheckObject(config, "", file_name, found);
  for (const std::string& key : config.Keys()) {
    const JsonValue& value = *config.Find(key);
    if (value.is_object()) CheckObject(value, key + ".", file_name, found);
  }
  return found;
}

}  // namespace moonshard
