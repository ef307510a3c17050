#include "engine/io/checkpoint/stored_adapter.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include <re2/re2.h>

#include "engine/core/base/check.h"
#include "engine/core/base/small_file.h"
#include "engine/core/base/text.h"

namespace moonshard {
namespace {

constexpr std::string_view kPrefix = "base_model.model.";

// The factors of one module.
struct Factors {
  const StoredTensor* a = nullptr;  // [rank, in]
  const StoredTensor* b = nullptr;  // [out, rank]
};

class AdapterReader {
 public:
  AdapterReader(const std::string& folder, HeaderOptions options, const std::string& name)
      : file_(folder + "/adapter_config.json"), weights_(folder + "/adapter_model.safetensors"), options_(options) {
    out_.name = name;
  }

  Result<StoredAdapter> Run() {
    std::optional<JsonValue> config = ReadJsonFile(file_, SmallFile::kConfig, JsonDialect::kPython).Collect(found_);
    std::optional<Checkpoint> checkpoint = Checkpoint::OpenFile(weights_, options_).Collect(found_);
    if (config && !config->is_object()) {
      Refuse("adapter_config.json is not an object", "an object, as PEFT writes it");
      config.reset();
    }
    if (config) ReadConfig(*config);
    if (checkpoint) ReadNames(*checkpoint);
    if (config && checkpoint) AddSections();
    if (HasErrors(found_)) return std::move(found_);
    out_.checkpoint = *std::move(checkpoint);
    return Result<StoredAdapter>(std::move(out_), std::move(found_));
  }

 private:
  Diagnostic& Add(Finding finding, std::string message, const std::string& path) {
    Diagnostic& d = found_.emplace_back(MakeDiagnostic(finding, std::move(message)));
    d.path = path;
    return d;
  }

  void Refuse(std::string message, std::string required) {
    Add(Finding::kUnsupportedModel, std::move(message), file_).required = std::move(required);
  }

  // --- adapter_config.json

  void ReadConfig(const JsonValue& config) {
    const JsonValue* type = config.Find("peft_type");
    if (type == nullptr || !type->is_string() || type->AsString() != "LORA")
      Refuse("the adapter is not a LoRA", "\"peft_type\": \"LORA\"");
    for (const char* key :
         {"use_dora", "use_qalora", "use_bdlora", "lora_bias", "fan_in_fan_out", "modules_to_save", "target_parameters",
          "trainable_token_indices", "layer_replication", "alora_invocation_tokens", "arrow_config"}) {
      const JsonValue* value = config.Find(key);
      if (value == nullptr || IsNothing(*value)) continue;
      Refuse(std::string("the adapter has '") + key + "', which no plan can declare",
             "an adapter of the weights of Linear modules alone");
    }
    const JsonValue* bias = config.Find("bias");
    if (bias != nullptr && !(bias->is_string() && bias->AsString() == "none"))
      Refuse("the adapter trains biases, which no plan can declare", "\"bias\": \"none\"");
    rank_ = Number(config, "r", 8);
    alpha_ = Number(config, "lora_alpha", 8);
    dropout_ = Number(config, "lora_dropout", 0);
    if (dropout_ < 0 || dropout_ >= 1) Refuse("lora_dropout is " + JsonOf(dropout_), "at least 0, and below 1");
    const JsonValue* scaled = config.Find("use_rslora");
    if (scaled != nullptr && !scaled->is_bool() && !scaled->is_null()) Refuse("use_rslora is no boolean", "a boolean");
    rslora_ = scaled != nullptr && scaled->is_bool() && scaled->AsBool();
    ReadPatterns(config, "rank_pattern", ranks_);
    ReadPatterns(config, "alpha_pattern", alphas_);
  }

  static bool IsNothing(const JsonValue& value) {
    return value.is_null() || (value.is_bool() && !value.AsBool()) || (value.is_array() && value.AsArray().empty()) ||
           (value.is_object() && value.AsObject().empty());
  }

  static std::string JsonOf(double value) { return WriteJson(JsonValue(value), 0); }

  double Number(const JsonValue& config, const char* key, double missing) {
    const JsonValue* value = config.Find(key);
    if (value == nullptr || value->is_null()) return missing;
    if (value->is_number() && std::isfinite(value->AsDouble())) return value->AsDouble();
    Refuse(std::string(key) + " is no number", "a number");
    return missing;
  }

  struct OfModules {
    std::string key;
    std::unique_ptr<RE2> ends;  // matches a full path
    double value = 0;
  };

  void ReadPatterns(const JsonValue& config, const char* key, std::vector<OfModules>& out) {
    const JsonValue* patterns = config.Find(key);
    if (patterns == nullptr || patterns->is_null()) return;
    if (!patterns->is_object()) {
      Refuse(std::string(key) + " is no object", "an object of numbers, by ends of paths of modules");
      return;
    }
    RE2::Options quiet;
    quiet.set_log_errors(false);
    for (const auto& [text, value] : patterns->AsObject()) {
      auto ends = std::make_unique<RE2>("(?:.*\\.)?(?:" + text + ")", quiet);
      if (!ends->ok() || !value.is_number()) {
        Refuse(std::string(key) + " has '" + text + "', which is no expression with a number",
               "numbers, by expressions");
        continue;
      }
      out.push_back({text, std::move(ends), value.AsDouble()});
    }
  }

  // The value for a module; `missing` if no key is for it.
  double ValueFor(const std::vector<OfModules>& patterns, const char* key, const std::string& module, double missing) {
    const OfModules* first = nullptr;
    for (const OfModules& one : patterns) {
      if (!RE2::FullMatch(module, *one.ends)) continue;
      if (first != nullptr && first->value != one.value) {
        Refuse(std::string("'") + module + "' has two values in " + key + ", by '" + first->key + "' and '" + one.key +
                   "'",
               "one key for each module");
      }
      if (first == nullptr) first = &one;
    }
    return first == nullptr ? missing : first->value;
  }

  // --- adapter_model.safetensors

  void ReadNames(const Checkpoint& checkpoint) {
    for (const StoredTensor& tensor : checkpoint.tensors()) {
      std::string_view name = tensor.name;
      const bool known = name.starts_with(kPrefix);
      if (known) name.remove_prefix(kPrefix.size());
      const bool first = name.ends_with(".lora_A.weight");
      if (!known || (!first && !name.ends_with(".lora_B.weight"))) {
        Add(Finding::kMissingTensor, "tensor '" + tensor.name + "' is no factor of a Linear module", weights_)
            .required = std::string(kPrefix) + "PATH.lora_A.weight and .lora_B.weight";
        continue;
      }
      const std::string module(name.substr(0, name.size() - std::string_view(".lora_A.weight").size()));
      (first ? factors_[module].a : factors_[module].b) = &tensor;
      out_.stored_as[module + (first ? ".lora_A." : ".lora_B.") + out_.name] = tensor.name;
    }
    for (const auto& [module, factors] : factors_) CheckShapes(module, factors);
    if (factors_.empty() && !HasErrors(found_)) Add(Finding::kMissingTensor, "the adapter has no factors", weights_);
  }

  void CheckShapes(const std::string& module, const Factors& factors) {
    if (factors.a == nullptr || factors.b == nullptr) {
      Add(Finding::kMissingTensor,
          "'" + module + "' has no " + (factors.a == nullptr ? "lora_A" : "lora_B") + " in the adapter", weights_);
      return;
    }
    if (factors.a->shape.size() == 2 && factors.b->shape.size() == 2 && factors.a->shape[0] == factors.b->shape[1])
      return;
    Diagnostic& d = Add(Finding::kTensorMismatch, "the factors of '" + module + "' do not fit together", weights_);
    d.declared = "lora_A " + ShapeToString(factors.a->shape) + ", lora_B " + ShapeToString(factors.b->shape);
    d.required = "lora_A [rank, in], lora_B [out, rank]";
  }

  // --- sections

  void AddSections() {
    std::map<std::pair<int64_t, double>, std::vector<std::string>> modules;  // by rank and alpha
    for (const auto& [module, factors] : factors_) {
      if (factors.a == nullptr || factors.a->shape.size() != 2) continue;
      const int64_t rank = factors.a->shape[0];
      const double declared = ValueFor(ranks_, "rank_pattern", module, rank_);
      if (static_cast<double>(rank) != declared) {
        Diagnostic& d = Add(Finding::kTensorMismatch,
                            "the factors of '" + module + "' have another rank than the config", weights_);
        d.declared = JsonOf(declared);
        d.required = std::to_string(rank);
      }
      modules[{rank, ValueFor(alphas_, "alpha_pattern", module, alpha_)}].push_back(module);
    }
    for (const auto& [of, paths] : modules) {
      Adapter section;
      section.name = out_.name;
      section.rank = of.first;
      section.alpha = of.second;
      section.dropout = dropout_;
      section.rslora = rslora_;
      section.source.file = file_;
      for (const std::string& pattern : PatternsOf(paths)) {
        section.modules.push_back({pattern, PatternSyntax::kGlob, section.source});
      }
      for (const std::string& path : paths) out_.section_of[path] = out_.sections.size();
      out_.sections.push_back(std::move(section));
    }
  }

  // Paths that differ in one number become one pattern: "layers.{0..3}.q_proj", or "layers.{0,2}.q_proj".
  static std::vector<std::string> PatternsOf(const std::vector<std::string>& paths) {
    std::map<std::pair<std::string, std::string>, std::set<int64_t>> numbers;  // by what is before and behind
    std::vector<std::string> out;
    for (const std::string& path : paths) {
      const std::vector<std::string> parts = Split(path, '.');
      const auto number = std::ranges::find_if(parts, [](const std::string& part) {
        constexpr size_t kMostDigits = 6;
        return !part.empty() && part.size() <= kMostDigits && (part == "0" || part[0] != '0') &&
               std::ranges::all_of(part, [](unsigned char c) { return std::isdigit(c) != 0; });
      });
      if (number == parts.end()) {
        out.push_back(path);
        continue;
      }
      const auto join = [](auto begin, auto end) { return Join(std::vector<std::string>(begin, end), "."); };
      numbers[{join(parts.begin(), number), join(number + 1, parts.end())}].insert(std::stoll(*number));
    }
    for (const auto& [around, found] : numbers) {
      std::string text = std::to_string(*found.begin());
      if (found.size() > 1) {
        std::vector<std::string> each;
        for (const int64_t one : found) each.push_back(std::to_string(one));
        const bool range = *found.rbegin() - *found.begin() + 1 == static_cast<int64_t>(found.size());
        text = "{" + (range ? each.front() + ".." + each.back() : Join(each, ",")) + "}";
      }
      const auto& [before, behind] = around;
      out.push_back((before.empty() ? "" : before + ".") + text + (behind.empty() ? "" : "." + behind));
    }
    std::ranges::sort(out);
    return out;
  }

  std::string file_;
  std::string weights_;
  HeaderOptions options_;
  double rank_ = 0;
  double alpha_ = 0;
  double dropout_ = 0;
  bool rslora_ = false;
  std::vector<OfModules> ranks_;
  std::vector<OfModules> alphas_;
  std::map<std::string, Factors> factors_;
  StoredAdapter out_;
  Diagnostics found_;
};

}  // namespace

Result<StoredAdapter> ReadAdapter(const std::string& folder, HeaderOptions options, const std::string& name) {
  Check(IsAdapterName(name), "not a name of an adapter");
  return AdapterReader(folder, options, name).Run();
}

}  // namespace moonshard
