// ConfigReader: typed fields of one JSON object, gathering a diagnostic for each that is wrong, and for those that nobody
// asked for: a config is read by asking for what the model computes with, so what is left over is what it does not
// know. Used by the readers of model configs.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/base/diagnostic.h"
#include "engine/core/base/json.h"

namespace moonshard {

class ConfigReader {
 public:
  // `prefix` stands before a field's name in messages ("rope_scaling."). `object` and `diagnostics` outlive the reader.
  ConfigReader(const JsonValue& object, std::string file, std::string prefix, Diagnostics& diagnostics)
      : object_(object), file_(std::move(file)), prefix_(std::move(prefix)), diagnostics_(diagnostics) {}

  // A field that is absent or null gives nothing; one of another kind or below `least` an error and nothing.
  std::optional<int64_t> Int(std::string_view name, int64_t least);
  std::optional<double> Number(std::string_view name, double least);
  std::optional<bool> Bool(std::string_view name);
  std::optional<std::string> String(std::string_view name);
  // A list of texts or of integers; an error and nothing where an element is of another kind.
  std::optional<std::vector<std::string>> Strings(std::string_view name);
  std::optional<std::vector<int64_t>> Ints(std::string_view name);
  std::optional<std::vector<double>> Numbers(std::string_view name);
  // The field as an object of its own, whose fields are named after this one. An empty object where it is absent, null,
  // empty, or (with an error) of another kind. Lives no longer than this reader.
  ConfigReader Object(std::string_view name);
  // An error where the field is absent.
  int64_t RequiredInt(std::string_view name, int64_t least);
  double RequiredNumber(std::string_view name, double least);

  // The field, or nullptr where it is absent or null. From now on the field counts as used.
  const JsonValue* Find(std::string_view name) const;
  // Whether the field is there, if only as null.
  bool Has(std::string_view name) const { return object_.Find(name) != nullptr; }
  bool empty() const { return object_.Keys().empty(); }
  const JsonValue& json() const { return object_; }
  const std::string& file() const { return file_; }
  Diagnostics& diagnostics() { return diagnostics_; }

  // Adds an error about a field: what it says, what would be right, what to do.
  void Refuse(std::string_view name, std::string message, std::string required = {}, std::string help = {});
  // An error where the field says something else than `only`, the one value that is computed here.
  void RequireBool(std::string_view name, bool only, std::string message);
  // A warning where the field is there and not null or false: `user` (an architecture, a rope type) does not use it.
  void WarnUnused(std::string_view name, std::string_view user);
  // WarnUnused for each field that was neither asked for nor is among `neutral` (sorted). One that is no slip of a name
  // that was asked for, and not among `meaningful` (sorted), gives a note only.
  void NameUnread(std::string_view user, const std::vector<std::string>& neutral,
                  const std::vector<std::string>& meaningful);

 private:
  template <class T>
  std::optional<T> RefuseKind(std::string_view name, const JsonValue& found, const char* wanted);
  template <class T, class Read>
  std::optional<std::vector<T>> List(std::string_view name, const char* wanted, Read read);

  const JsonValue& object_;
  std::string file_;
  std::string prefix_;
  Diagnostics& diagnostics_;
  mutable std::set<std::string, std::less<>> asked_;
};

}  // namespace moonshard
