#include "engine/io/config/config.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "engine/core/base/small_file.h"
#include "engine/io/config/config_ranges.h"

namespace moonshard {
namespace {

// {"__float__": "-Infinity"} and its like, in place of doubles that JSON has not.
void ReadFloats(JsonValue& value) {
  if (value.is_array()) {
    for (JsonValue& one : value.AsArray()) ReadFloats(one);
  }
  if (!value.is_object()) return;
  const JsonValue* named = value.Find("__float__");
  if (named != nullptr && named->is_string() && value.AsObject().size() == 1) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    const std::string& name = named->AsString();
    if (name == "Infinity" || name == "-Infinity") {
      value = name.front() == '-' ? -kInfinity : kInfinity;
    } else if (name == "NaN") {
      value = std::numeric_limits<double>::quiet_NaN();
    }
    return;
  }
  for (auto& [key, one] : value.AsObject()) ReadFloats(one);
}

}  // namespace

ModelConfig::ModelConfig(JsonValue::Object fields, std::string file_name)
    : json_(std::move(fields)), file_name_(std::move(file_name)) {
  ReadFloats(json_);
}

Result<ModelConfig> ModelConfig::Read(const std::string& folder) {
  const std::string path = folder + "/config.json";
  Result<JsonValue> read = ReadJsonFile(path, SmallFile::kConfig, JsonDialect::kPython);
  if (!read.ok()) return read.diagnostics();
  if (!read.value().is_object()) {
    Diagnostic d =
        MakeDiagnostic(Finding::kBadJson, std::string("the file contains a JSON ") + read.value().KindName());
    d.where.file = path;
    d.required = "a JSON object";
    return d;
  }
  const JsonValue* names = read.value().Find("architectures");
  const bool listed = names == nullptr || names->is_null() ||
                      (names->is_array() && std::ranges::all_of(names->AsArray(), &JsonValue::is_string));
  if (!listed) {
    Diagnostic d = MakeDiagnostic(Finding::kUnsupportedModel, "config field 'architectures' is not a list of strings");
    d.where.file = path;
    d.path = "architectures";
    d.declared = WriteJson(*names, 0);
    d.required = "a list of strings, for example [\"LlamaForCausalLM\"]";
    return d;
  }
  if (Diagnostics found = CheckConfigRanges(read.value(), path); !found.empty()) return found;
  return ModelConfig(std::move(read.value().AsObject()), path);
}

std::string ModelConfig::model_type() const {
  const JsonValue* type = Get("model_type");
  return type && type->is_string() ? type->AsString() : "";
}

std::string ModelConfig::architecture() const {
  const JsonValue* names = Get("architectures");
  if (!names || !names->is_array() || names->AsArray().empty() || !names->AsArray().front().is_string()) return "";
  return names->AsArray().front().AsString();
}

std::optional<bool> ModelConfig::tie_word_embeddings() const {
  const JsonValue* tie = Get("tie_word_embeddings");
  if (!tie || !tie->is_bool()) return std::nullopt;
  return tie->AsBool();
}

}  // namespace moonshard
