// ConfigReader: typed fields of one JSON object, with a diagnostic for each that is wrong and for each that was never
// read:
// a model reads all fields that it computes with, so the rest are fields that it does not support.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
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
  // `prefix` precedes field names in messages ("rope_scaling."). `object` and `diagnostics` must outlive the reader.
  ConfigReader(const JsonValue& object, std::string file, std::string prefix, Diagnostics& diagnostics)
      : object_(object), file_(std::move(file)), prefix_(std::move(prefix)), diagnostics_(diagnostics) {}

  // Nothing for a field that is absent or null; an error and nothing for one of another kind, below `least` or
  // above MostOf(name), or above `most`; a number is finite.
  std::optional<int64_t> Int(std::string_view name, int64_t least);
  std::optional<double> Number(std::string_view name, double least, double most = std::numeric_limits<double>::max());
  std::optional<bool> Bool(std::string_view name);
  std::optional<std::string> String(std::string_view name);
  // A list; an error and nothing if an element is of another kind.
  std::optional<std::vector<std::string>> Strings(std::string_view name);
  std::optional<std::vector<int64_t>> Ints(std::string_view name);
  std::optional<std::vector<double>> Numbers(std::string_view name);
  // The field as a nested object; its fields are named with this one's name as prefix. An empty object if it is absent,
  // null, empty, or (with an error) of another kind. Must not outlive this reader.
  ConfigReader Object(std::string_view name);
  // An error if the field is absent.
  int64_t RequiredInt(std::string_view name, int64_t least);
  double RequiredNumber(std::string_view name, double least);

  // The field, or nullptr if it is absent or null. Marks the field as read.
  const JsonValue* Find(std::string_view name) const;
  // Whether the field is present, even as null.
  bool Has(std::string_view name) const { return object_.Find(name) != nullptr; }
  // Whether none of these fields was refused: a comparison with a refused field would use a value that is not in the
  // config.
  bool Sound(std::initializer_list<std::string_view> names) const;
  bool empty() const { return object_.Keys().empty(); }
  const JsonValue& json() const { return object_; }
  const std::string& file() const { return file_; }
  Diagnostics& diagnostics() { return diagnostics_; }

  // Adds an error about a field: its message, the required value, help.
  void Refuse(std::string_view name, std::string message, std::string required = {}, std::string help = {});
  // An error if the field is not `only`, the one supported value.
  void RequireBool(std::string_view name, bool only, std::string message);
  // A warning if the field is present and not null or false: `user` (an architecture, a rope type) does not use it.
  void WarnUnused(std::string_view name, std::string_view user);
  // WarnUnused for each field that was not read and is not among `neutral` (sorted). Only a note for a field that is
  // neither a misspelling of one that was read nor among `meaningful` (sorted).
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
  std::set<std::string, std::less<>> refused_;
};

}  // namespace moonshard
