#include "dsl/planning/resolve_model/adapter_options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

#include "dsl/language/bind/builtins.h"
#include "engine/core/base/text.h"

namespace moonshard {
namespace {

constexpr const char* kLora = "--lora";
constexpr std::string_view kTarget = "target";

Diagnostic BadOption(const char* option, const std::string& message, const std::string& declared,
                     const std::string& required) {
  Diagnostic d = MakeDiagnostic(Finding::kBadArgument, message);
  d.path = option;
  d.declared = declared;
  d.required = required;
  return d;
}

// Splits at `separator`, but not within braces or brackets.
std::vector<std::string> SplitOutside(std::string_view text, char separator) {
  std::vector<std::string> out(1);
  int depth = 0;
  for (const char c : text) {
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    if (c == separator && depth <= 0) {
      out.emplace_back();
    } else {
      out.back() += c;
    }
  }
  return out;
}

std::string Trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(' ');
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(' ') - begin + 1);
}

template <class Number>
std::optional<Number> Read(const std::string& text) {
  Number number = 0;
  const char* end = text.data() + text.size();
  if (std::from_chars(text.data(), end, number) != std::from_chars_result{end, std::errc()}) return std::nullopt;
  return number;
}

// One --lora. The bounds are those of the keys of `lora` (dsl/language/bind).
class LoraReader {
 public:
  LoraReader(const std::string& text, Diagnostics& found) : text_(text), found_(found) {}

  // `targets`: those in the text; empty: none.
  Adapter Run(std::vector<std::string>& targets) {
    section_.source.file = kLora;
    for (const std::string& entry : SplitOutside(text_, ',')) {
      const size_t equals = entry.find('=');
      const std::string key = Trimmed(entry.substr(0, equals));
      const std::vector<std::string> keys = {"alpha",  "dropout",           "dtype", "name", "rank",
                                             "rslora", std::string(kTarget)};
      if (equals == std::string::npos || std::ranges::count(keys, key) == 0) {
        Refuse("has '" + entry + "', which is no key with a value",
               "keys and values separated by commas, as in rank=8,alpha=16,target=q_proj+v_proj");
        found_.back().help = DidYouMean(key, keys);
      } else if (!given_.insert(key).second) {
        Refuse("has the key '" + key + "' twice", "each key once");
      } else {
        Take(key, Trimmed(entry.substr(equals + 1)), targets);
      }
    }
    return std::move(section_);
  }

 private:
  void Refuse(const std::string& what, const std::string& required) {
    found_.push_back(BadOption(kLora, "--lora " + what, text_, required));
  }

  void Take(const std::string& key, const std::string& value, std::vector<std::string>& targets) {
    if (key == kTarget) {
      targets = SplitOutside(value, '+');
      for (std::string& target : targets) target = Trimmed(target);
      if (std::ranges::count(targets, "") > 0) Refuse("has an empty target", "names of modules, as in q_proj+v_proj");
      return;
    }
    const KeyInfo& info = KeyOf("lora", key);
    bool fits = false;
    if (key == "rank") {
      const std::optional<int64_t> rank = Read<int64_t>(value);
      fits = rank && *rank >= info.minimum && *rank <= info.maximum;
      if (fits) section_.rank = *rank;
    } else if (key == "alpha") {
      const std::optional<double> alpha = Read<double>(value);
      fits = alpha && *alpha > static_cast<double>(info.minimum) && *alpha < HUGE_VAL;
      if (fits) section_.alpha = *alpha;
    } else if (key == "dropout") {
      const std::optional<double> dropout = Read<double>(value);
      fits = dropout && *dropout >= static_cast<double>(info.minimum) && *dropout < static_cast<double>(info.maximum);
      if (fits) section_.dropout = *dropout;
    } else if (key == "rslora") {
      fits = value == "true" || value == "false";
      section_.rslora = value == "true";
    } else if (key == "dtype") {
      fits = DTypeFromTorch(value).has_value() && IsCompute(*DTypeFromTorch(value));
      section_.dtype = value;
    } else {
      fits = IsAdapterName(value);
      section_.name = value;
      if (!fits) return Refuse("has the name '" + value + "'", "letters, digits, '_' and '-'");
    }
    if (!fits) Refuse("has '" + value + "' for '" + key + "'", RequirementOf(info));
  }

  static bool IsCompute(DType dtype) {
    return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF64;
  }

  const std::string& text_;
  Diagnostics& found_;
  std::set<std::string> given_;
  Adapter section_;
};

bool EndsIn(const std::string& path, std::string_view name) {
  return path == name || (path.ends_with(name) && path[path.size() - name.size() - 1] == '.');
}

struct DefaultTargets {
  const char* model_type;
  std::vector<std::string> targets;
};

// Of peft/utils/constants.py (TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING), the types whose targets are others
// than those of kAttention.
const DefaultTargets kDefaults[] = {
    {"blip-2", {"q", "v", "q_proj", "v_proj"}},
    {"btlm", {"c_proj", "c_attn"}},
    {"deberta", {"in_proj"}},
    {"deberta-v2", {"query_proj", "value_proj"}},
    {"gemma4", {"language_model.**.q_proj", "language_model.**.v_proj"}},
    {"nemotron_h", {"q_proj", "k_proj", "v_proj", "o_proj"}},
    {"phi", {"q_proj", "v_proj", "fc1", "fc2"}},
    {"rwkv", {"key", "value", "receptance", "output"}},
    {"rwkv7", {"r_proj", "k_proj", "v_proj", "o_proj", "key", "value"}},
};

// The query and value projections of attention, or the projection that has both, by the names of Hugging Face.
const std::vector<std::string> kAttention[] = {
    {"q_proj", "v_proj"}, {"query", "value"}, {"q", "v"}, {"query_key_value"},
    {"qkv_proj"},         {"c_attn"},         {"Wqkv"},   {"W_pack"},
};

}  // namespace

Result<std::vector<StoredAdapter>> ReadAdapters(const std::vector<std::string>& texts, HeaderOptions options,
                                                const AdaptedModel& model) {
  std::vector<StoredAdapter> out;
  Diagnostics found;
  std::set<std::string> names;
  for (const std::string& text : texts) {
    const size_t equals = text.find('=');
    std::error_code ignored;
    const bool named = equals != std::string::npos && IsAdapterName(text.substr(0, equals)) &&
                       !std::filesystem::is_directory(text, ignored);
    const std::string name = named ? text.substr(0, equals) : Adapter().name;
    const std::string directory = named ? text.substr(equals + 1) : text;
    if (directory.empty()) {
      found.push_back(BadOption("--adapter", "--adapter has no directory", "--adapter '" + text + "'",
                                "DIR or NAME=DIR, a directory with the files of PEFT"));
      continue;
    }
    if (!names.insert(name).second) {
      found.push_back(BadOption("--adapter", "two adapters have the name '" + name + "'", "--adapter " + text,
                                "a name for each, as in --adapter first=DIR --adapter second=DIR"));
      continue;
    }
    std::optional<StoredAdapter> adapter = ReadAdapter(directory, options, name, model).Collect(found);
    if (adapter) out.push_back(*std::move(adapter));
  }
  if (HasErrors(found)) return found;
  return Result<std::vector<StoredAdapter>>(std::move(out), std::move(found));
}

Result<std::vector<Adapter>> ParseLora(const std::vector<std::string>& texts, const ModelConfig& config,
                                       const ModuleTree& tree) {
  std::vector<Adapter> out;
  Diagnostics found;
  for (const std::string& text : texts) {
    std::vector<std::string> targets;
    const size_t before = found.size();
    Adapter section = LoraReader(text, found).Run(targets);
    if (found.size() > before) continue;  // a key that was not read may have been the target
    if (targets.empty()) targets = TargetsOf(config, tree);
    if (targets.empty()) {
      found.push_back(BadOption(kLora, "--lora has no target, and the model has no known projections of attention",
                                text, "target=NAME+NAME, with the ends of paths of Linear modules"));
    }
    for (const std::string& target : targets) {
      section.modules.push_back({"**." + target, PatternSyntax::kGlob, section.source});
    }
    out.push_back(std::move(section));
  }
  if (HasErrors(found)) return found;
  return Result<std::vector<Adapter>>(std::move(out), std::move(found));
}

std::vector<std::string> TargetsOf(const ModelConfig& config, const ModuleTree& tree) {
  if (const JsonValue* type = config.Get("model_type"); type != nullptr && type->is_string()) {
    const auto known =
        std::ranges::find_if(kDefaults, [&](const DefaultTargets& one) { return type->AsString() == one.model_type; });
    if (known != std::end(kDefaults)) return known->targets;
  }
  const auto has = [&](const std::string& name) {
    return std::ranges::any_of(tree.modules(), [&](const Module& module) { return EndsIn(module.path, name); });
  };
  const auto found = std::ranges::find_if(
      kAttention, [&](const std::vector<std::string>& names) { return std::ranges::all_of(names, has); });
  return found == std::end(kAttention) ? std::vector<std::string>() : *found;
}

Diagnostics Activate(const std::string& name, std::vector<Adapter>& sections) {
  const auto rest = std::ranges::stable_partition(sections, [&](const Adapter& one) { return one.name == name; });
  if (rest.begin() != sections.begin()) return {};
  std::vector<std::string> names;
  for (const Adapter& one : sections) {
    if (std::ranges::count(names, one.name) == 0) names.push_back(one.name);
  }
  Diagnostic d = BadOption("--active", "there is no adapter '" + name + "'", "--active " + name,
                           names.empty() ? "an adapter: --adapter NAME=DIR, or `lora` sections in the plan" : "");
  if (d.required.empty()) d.required = "the name of an adapter: " + Join(names, ", ");
  d.help = DidYouMean(name, names, 0);
  return {std::move(d)};
}

}  // namespace moonshard
