// The record is a field of the manifest's `extra`, and so under the manifest's own hash: the step, the host's texts,
// the optimizer and the hash of the generators' file cannot be those of two saves. State of the optimizer is listed by
// kind, with the paths of the parameters that have it, since thousands of parameters share a few kinds.
#include "engine/io/checkpoint/training_record.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "engine/core/base/hash.h"

namespace moonshard {
namespace {

constexpr const char* kKey = "training";
constexpr int64_t kMostSteps = int64_t{1} << 53;  // what every reader of JSON has as an exact number
// A record can be wrong everywhere: after so many errors the rest is not informative.
constexpr size_t kMostFaults = 20;

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

// A value as a message shows it: in full where it is short.
std::string Shown(const JsonValue* value) {
  if (value == nullptr) return "nothing";
  constexpr size_t kMost = 100;
  const std::string text = WriteJson(*value, 0);
  return text.size() <= kMost
             ? text
             : std::string("JSON ") + value->KindName() + " of " + std::to_string(text.size()) + " bytes";
}

bool IsFinite(const JsonValue& value) {
  if (value.is_array()) return std::ranges::all_of(value.AsArray(), IsFinite);
  return !value.is_double() || std::isfinite(value.AsDouble());
}

// Reading goes on after an error, with nothing in place of what is wrong, until kMostFaults are found. `place` is where
// in the record an object lies.
class Reader {
 public:
  explicit Reader(std::string file) : file_(std::move(file)) {}

  Result<TrainingRecord> Read(const JsonValue& json) {
    TrainingRecord out;
    out.step = Integer(json, "step", "", kMostSteps);
    for (const auto& [name, text] : Map(json, "host", "")) {
      if (!text.is_string()) Say(name, "host", &text, "a string");
      if (text.is_string()) out.host[name] = text.AsString();
    }
    const JsonValue random = Map(json, "random", "");
    out.random_bytes = static_cast<uint64_t>(Integer(random, "bytes", "random", std::numeric_limits<int64_t>::max()));
    out.random_hash = Hash(random, "hash", "random");
    const JsonValue* optimizer = json.Find("optimizer");
    if (optimizer == nullptr || !(optimizer->is_null() || optimizer->is_object())) {
      Say("optimizer", "", optimizer, "an object, or null for a run without an optimizer");
    } else if (optimizer->is_object()) {
      out.optimizer = ReadOptimizer(*optimizer);
    }
    if (!found_.empty()) return found_;
    return out;
  }

 private:
  void Say(const std::string& key, const std::string& place, const JsonValue* value, const std::string& required) {
    if (found_.size() >= kMostFaults) return;
    Diagnostic d = MakeDiagnostic(Finding::kBadManifest, "the training record has no valid " + JsonQuoted(key) +
                                                             (place.empty() ? "" : " in '" + place + "'"));
    d.where.file = file_;
    d.path = place;
    d.declared = Shown(value);
    d.required = required;
    found_.push_back(std::move(d));
  }

  const JsonValue* Need(const JsonValue& in, const char* key, const std::string& place, bool (JsonValue::*is)() const,
                        const char* required) {
    const JsonValue* value = in.Find(key);
    if (value != nullptr && (value->*is)()) return value;
    Say(key, place, value, required);
    return nullptr;
  }
  JsonValue::Object Map(const JsonValue& in, const char* key, const std::string& place) {
    const JsonValue* map = Need(in, key, place, &JsonValue::is_object, "an object");
    return map != nullptr ? map->AsObject() : JsonValue::Object();
  }
  JsonValue::Array List(const JsonValue& in, const char* key, const std::string& place) {
    const JsonValue* list = Need(in, key, place, &JsonValue::is_array, "an array");
    return list != nullptr ? list->AsArray() : JsonValue::Array();
  }
  std::string Text(const JsonValue& in, const char* key, const std::string& place) {
    const JsonValue* value = Need(in, key, place, &JsonValue::is_string, "a string");
    return value != nullptr ? value->AsString() : "";
  }
  int64_t Integer(const JsonValue& in, const char* key, const std::string& place, int64_t most) {
    const JsonValue* value = in.Find(key);
    if (value != nullptr && value->is_int() && value->AsInt() >= 0 && value->AsInt() <= most) return value->AsInt();
    Say(key, place, value, "an integer from 0 to " + std::to_string(most));
    return 0;
  }
  uint64_t Hash(const JsonValue& in, const char* key, const std::string& place) {
    const JsonValue* value = in.Find(key);
    const std::optional<uint64_t> hash =
        value != nullptr && value->is_string() ? HashFromText(value->AsString()) : std::nullopt;
    if (!hash) Say(key, place, value, "16 hex digits");
    return hash.value_or(0);
  }
  // Texts that are not empty, each once in `seen`, to which they are added.
  std::vector<std::string> Names(const JsonValue& in, const char* key, const std::string& place,
                                 std::set<std::string>& seen) {
    std::vector<std::string> out;
    for (const JsonValue& name : List(in, key, place)) {
      if (!name.is_string() || name.AsString().empty()) {
        Say(key, place, &name, "strings that are not empty");
      } else if (!seen.insert(name.AsString()).second) {
        Say(key, place, &name, "each name once");
      } else {
        out.push_back(name.AsString());
      }
    }
    return out;
  }
  // Options of a group, values of a memory: of whatever kinds the optimizer has them.
  JsonValue::Object Values(const JsonValue& in, const char* key, const std::string& place) {
    JsonValue::Object values = Map(in, key, place);
    for (const auto& [name, value] : values) {
      if (!IsFinite(value)) Say(name, place, &value, "finite numbers");
    }
    return values;
  }

  OptimizerRecord ReadOptimizer(const JsonValue& json) {
    OptimizerRecord out;
    out.kind = Text(json, "kind", "optimizer");
    std::set<std::string> grouped;
    for (const JsonValue& group : List(json, "groups", "optimizer")) {
      const std::string place = "optimizer.groups[" + std::to_string(out.groups.size()) + "]";
      out.groups.push_back({Values(group, "options", place), Names(group, "parameters", place, grouped)});
    }
    std::set<std::string> remembered;
    for (const JsonValue& memory : List(json, "memories", "optimizer")) {
      const std::string place = "optimizer.memories[" + std::to_string(out.memories.size()) + "]";
      std::set<std::string> tensors;
      out.memories.push_back({Values(memory, "values", place), Names(memory, "tensors", place, tensors),
                              Names(memory, "parameters", place, remembered)});
      for (const std::string& parameter : out.memories.back().parameters) {
        if (grouped.contains(parameter)) continue;
        const JsonValue name = parameter;
        Say("parameters", place, &name, "parameters of the optimizer's groups");
      }
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
