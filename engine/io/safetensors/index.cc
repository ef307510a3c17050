// The names in an index become paths that are opened, and an index may be downloaded: a name that leads out of the
// directory is refused by its text.
#include "engine/io/safetensors/index.h"

#include <filesystem>
#include <set>
#include <utility>

#include "engine/core/base/json.h"
#include "engine/core/base/small_file.h"
#include "engine/io/safetensors/header_json.h"

namespace moonshard {
namespace {

Diagnostic BadIndex(const std::string& index, std::string message, std::string required) {
  Diagnostic d = MakeDiagnostic(Finding::kBadIndex, std::move(message));
  d.where.file = index;
  d.required = std::move(required);
  return d;
}

// By its text alone: shards may be links to anywhere, as in the Hugging Face cache.
bool StaysInFolder(const std::string& name) {
  const std::filesystem::path path(name);
  if (name.empty() || name.find('\0') != std::string::npos || path.is_absolute() || !path.has_filename()) return false;
  for (const auto& component : path) {
    if (component == ".." || component == ".") return false;
  }
  return true;
}

}  // namespace

Result<CheckpointIndex> CheckpointIndexFrom(const JsonValue& json, const std::string& path) {
  const std::string required = "\"weight_map\": {\"tensor\": \"file.safetensors\", ...}";
  const JsonValue* map = json.Find("weight_map");
  if (!map || !map->is_object()) {
    return BadIndex(path,
                    map ? std::string("weight_map has the type ") + map->KindName() : "the index has no weight_map",
                    required);
  }
  CheckpointIndex index;
  Diagnostics errors;
  std::set<std::string> refused;
  for (const auto& [tensor, file] : map->AsObject()) {
    if (!file.is_string()) {
      Diagnostic d = BadIndex(path, "the file of tensor " + QuotedName(tensor) + " is not a string", required);
      d.declared = WriteJson(file, 0);
      errors.push_back(std::move(d));
    } else if (StaysInFolder(file.AsString())) {
      index.file_of.emplace(tensor, file.AsString());
    } else if (refused.insert(file.AsString()).second) {
      Diagnostic d = BadIndex(path,
                              "the index names the file " + QuotedName(file.AsString()) +
                                  ", which is not a plain path within the index's directory",
                              "a relative path within the index's directory, without '.' or '..'");
      d.path = tensor;
      errors.push_back(std::move(d));
    }
  }
  if (!errors.empty()) return errors;
  return index;
}

Result<CheckpointIndex> ReadCheckpointIndex(const std::string& path) {
  const Result<JsonValue> json = ReadJsonFile(path, SmallFile::kIndex, JsonDialect::kPython);
  if (!json.ok()) return json.diagnostics();
  return CheckpointIndexFrom(json.value(), path);
}

}  // namespace moonshard
