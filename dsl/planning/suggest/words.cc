// Names of modules are read as a core with decoration around it. "q_proj", "to_q", "linear_q" and "wq" have the core q
// or wq; "proj", "to", "linear" carry no meaning. The last component is read first because it is the most specific; if
// it is decoration only ("attention.dense", "mlp.0"), the one before it is read. A core that is not in the table ends
// the search: a name with an unknown meaning must not be read as that of its directory.
#include "dsl/planning/suggest/words.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <set>
#include <vector>

#include "engine/core/base/text.h"

namespace moonshard {
namespace {

std::string Lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

// Parts of a name without a meaning.
const std::set<std::string, std::less<>>& Decoration() {
  static const std::set<std::string, std::less<>> words = {
      "proj", "projection", "lin", "linear", "layer", "to", "c",      "w",      "dense", "fc",        "net",
      "self", "attn",       "att", "mlp",    "ffn",   "ff", "module", "weight", "base",  "attention", ""};
  return words;
}

const std::map<std::string, Word, std::less<>>& Cores() {
  static const std::map<std::string, Word, std::less<>> words = {
      {"q", Word::kQuery},     {"query", Word::kQuery},  {"queries", Word::kQuery},
      {"wq", Word::kQuery},    {"k", Word::kKey},        {"key", Word::kKey},
      {"keys", Word::kKey},    {"wk", Word::kKey},       {"v", Word::kValue},
      {"value", Word::kValue}, {"values", Word::kValue}, {"wv", Word::kValue},
      {"kv", Word::kKeyValue}, {"wkv", Word::kKeyValue}, {"key_value", Word::kKeyValue},
      {"qkv", Word::kFused},   {"wqkv", Word::kFused},   {"query_key_value", Word::kFused},
      {"pack", Word::kFused},  {"q_k_v", Word::kFused},  {"o", Word::kOut},
      {"wo", Word::kOut},      {"out", Word::kOut},      {"output", Word::kOut},
      {"gate", Word::kUp},     {"up", Word::kUp},        {"gate_up", Word::kUp},
      {"w1", Word::kUp},       {"w3", Word::kUp},        {"fc1", Word::kUp},
      {"h_4h", Word::kUp},     {"lin1", Word::kUp},      {"linear1", Word::kUp},
      {"1", Word::kUp},        {"wi", Word::kUp},        {"wi_0", Word::kUp},
      {"wi_1", Word::kUp},     {"in", Word::kUp},        {"intermediate", Word::kUp},
      {"v1", Word::kUp},       {"w12", Word::kUp},       {"down", Word::kDown},
      {"w2", Word::kDown},     {"fc2", Word::kDown},     {"4h_h", Word::kDown},
      {"lin2", Word::kDown},   {"linear2", Word::kDown}, {"2", Word::kDown}};
  return words;
}

bool SaysAttention(std::string_view component) {
  const std::string lower = Lower(component);
  return lower.find("attn") != std::string::npos || lower.find("attention") != std::string::npos || lower == "att" ||
         lower == "mha" || lower.starts_with("att_");
}

// "q" of "q_proj", "h_4h" of "dense_h_to_4h".
std::string CoreOf(std::string_view component) {
  std::vector<std::string> parts;
  for (const std::string& part : Split(Lower(component), '_')) {
    if (!Decoration().contains(part)) parts.push_back(part);
  }
  return Join(parts, "_");
}

std::string Before(const std::vector<std::string>& components, size_t index) {
  const std::vector<std::string> before(components.begin(), components.begin() + static_cast<std::ptrdiff_t>(index));
  return Join(before, ".");
}

}  // namespace

Named ReadName(std::string_view path) {
  const std::vector<std::string> components = Split(path, '.');
  for (size_t i = components.size(); i-- > 0;) {
    const std::string lower = Lower(components[i]);
    const bool number = std::ranges::all_of(lower, [](char c) { return c >= '0' && c <= '9'; });
    if (number) continue;
    if (lower == "c_attn") return {Word::kFused, Before(components, i)};
    const std::string core = CoreOf(lower);
    if (const auto known = Cores().find(core); known != Cores().end()) return {known->second, Before(components, i)};
    if (SaysAttention(lower) && core.empty()) {
      return {Word::kAttention, i + 1 == components.size() ? Before(components, i) : Before(components, i + 1)};
    }
    if (!core.empty()) break;
  }
  return {Word::kNone, components.empty() ? "" : Before(components, components.size() - 1)};
}

bool IsNormName(std::string_view path) {
  const auto is_number = [](const std::string& text) {
    return text.find_first_not_of("0123456789") == std::string::npos;
  };
  std::vector<std::string> components = Split(Lower(path), '.');
  while (components.size() > 1 && is_number(components.back())) components.pop_back();  // "layernorm.0", of a list
  const std::string last = components.empty() ? "" : components.back();
  if (last.find("norm") != std::string::npos) return true;
  const std::vector<std::string> parts = Split(last, '_');
  return std::ranges::any_of(parts, [](const std::string& part) {
    return part.starts_with("ln") &&
           (part.size() == 2 || part == "lnf" || std::isdigit(static_cast<unsigned char>(part[2])) != 0);
  });
}

namespace {

template <size_t kCount>
bool HoldsOneOf(std::string_view path, const std::array<const char*, kCount>& words) {
  const std::string lower = Lower(path);
  return std::ranges::any_of(words, [&](const char* word) { return lower.find(word) != std::string::npos; });
}

}  // namespace

bool IsHearing(std::string_view path) { return HoldsOneOf(path, std::array{"audio", "speech"}); }

bool IsOtherSense(std::string_view path) {
  return IsHearing(path) || HoldsOneOf(path, std::array{"vision", "visual", "image", "vit.", "clip", "siglip"});
}

bool IsGateThenUp(std::string_view path, std::string_view model_type) {
  constexpr std::array kInterleaved = {"gpt_oss", "openai_privacy_filter"};
  if (std::ranges::find(kInterleaved, model_type) != kInterleaved.end()) return false;
  if (path == "gate_up_proj" || path.ends_with(".gate_up_proj")) return true;
  constexpr std::array kTypes = {"aria_text",
                                 "granitemoe",
                                 "granitemoehybrid",
                                 "granitemoeshared",
                                 "jetmoe",
                                 "kyutai_speech_to_text",
                                 "modernbert",
                                 "modernbert-decoder",
                                 "moshi"};
  return std::ranges::find(kTypes, model_type) != kTypes.end();
}

}  // namespace moonshard
