// The record is a field of the manifest's `extra`, and so under the manifest's own hash: the step, the host's texts,
// the optimizer and the hash of the generators' file cannot be those of two saves. State of the optimizer is listed by
// kind, with the paths of the parameters that have it, since thousands of parameters share a few kinds.
#include "engine/io/checkpoint/training_record.h"

#include <algorithm>
#include <utility>

#include "engine/core/base/hash.h"

namespace moonshard {
namespace {

constexpr const char* kKey = "training";

JsonValue::Array ToArray(const std::vector<std::string>& texts) { return {texts.begin(), texts.end()}; }

JsonValue OptimizerToJson(const OptimizerRecord& optimizer) {
  JsonValue::Array groups;
  for (const OptimizerRecord::Group& group : optimizer.groups) {
    groups.push_back(JsonValue::Object{{"options", group.options}, {"parameters", ToArray(group.parameters)}});
  }
  JsonValue::Array memories;
  for (const MemoryRecord& memory : optimizer.memories) {
    memories.push_back(JsonValue::Object{
        {"values", memory.values}, {"tensors", ToArray(memory.tensors)}, {"parameters", ToArray(memory.parameters)}});
  }
  return JsonValue::Object{{"kind", optimizer.kind}, {"groups", std::move(groups)}, {"memories", std::move(memories)}};
}

class Reader {
 public:
  explicit Reader(std::string file) : file_(std::move(file)) {}

  const JsonValue* Need(const JsonValue& in, const char* key, bool (JsonValue::*is)() const) {
    const JsonValue* value = in.Find(key);
    if (value && (value->*is)()) return value;
    Diagnostic d = MakeDiagnostic(Finding::kBadManifest, std::string("the training record has no valid '") + key + "'");
    d.where.file = file_;
    found_.push_back(std::move(d));
    return nullptr;
  }
  std::vector<std::string> Texts(const JsonValue& in, const char* key) {
    std::vector<std::string> out;
    const JsonValue* list = Need(in, key, &JsonValue::is_array);
    for (const JsonValue& text : list ? list->AsArray() : JsonValue::Array()) {
      out.push_back(text.is_string() ? text.AsString() : "");
    }
    return out;
  }
  JsonValue::Object Map(const JsonValue& in, const char* key) {
    const JsonValue* map = Need(in, key, &JsonValue::is_object);
    return map ? map->AsObject() : JsonValue::Object();
  }
  JsonValue::Array List(const JsonValue& in, const char* key) {
    const JsonValue* list = Need(in, key, &JsonValue::is_array);
    return list ? list->AsArray() : JsonValue::Array();
  }
  int64_t Count(const JsonValue& in, const char* key) {
    const JsonValue* value = Need(in, key, &JsonValue::is_int);
    return value ? value->AsInt() : 0;
  }
  std::string Text(const JsonValue& in, const char* key) {
    const JsonValue* value = Need(in, key, &JsonValue::is_string);
    return value ? value->AsString() : "";
  }

  Result<TrainingRecord> Read(const JsonValue& json) {
    TrainingRecord out;
    out.step = Count(json, "step");
    for (const auto& [name, text] : Map(json, "host")) out.host[name] = text.is_string() ? text.AsString() : "";
    const JsonValue random = Map(json, "random");
    out.random_bytes = static_cast<uint64_t>(Count(random, "bytes"));
    out.random_hash = HashFromText(Text(random, "hash")).value_or(0);
    const JsonValue* optimizer = json.Find("optimizer");
    if (optimizer && !optimizer->is_null()) out.optimizer = ReadOptimizer(*optimizer);
    if (!found_.empty()) return found_;
    return out;
  }

 private:
  OptimizerRecord ReadOptimizer(const JsonValue& json) {
    OptimizerRecord out;
    out.kind = Text(json, "kind");
    for (const JsonValue& group : List(json, "groups")) {
      out.groups.push_back({Map(group, "options"), Texts(group, "parameters")});
    }
    for (const JsonValue& memory : List(json, "memories")) {
      out.memories.push_back({Map(memory, "values"), Texts(memory, "tensors"), Texts(memory, "parameters")});
    }
    return out;
  }

  std::string file_;
  Diagnostics found_;
};

}  // namespace

JsonValue TrainingRecord::ToJson() const {
  JsonValue::Object texts;
  for (const auto& [name, text] : host) texts.emplace(name, text);
  JsonValue::Object record{{"step", step},
                           {"host", std::move(texts)},
                           {"random", JsonValue::Object{{"bytes", random_bytes}, {"hash", HashToText(random_hash)}}},
                           {"optimizer", optimizer ? OptimizerToJson(*optimizer) : JsonValue()}};
  return JsonValue::Object{{kKey, std::move(record)}};
}

Result<TrainingRecord> TrainingRecord::Of(const Manifest& manifest, const std::string& file) {
  const JsonValue* json = manifest.extra.Find(kKey);
  if (json) return Reader(file).Read(*json);
  Diagnostic d = MakeDiagnostic(Finding::kNotSupported, "'" + file + "' was not written by a training run");
  d.path = file;
  return d;
}

std::string OptimizerTensorName(const std::string& tensor, const std::string& parameter) {
  return "optimizer." + tensor + "." + parameter;
}

}  // namespace moonshard
