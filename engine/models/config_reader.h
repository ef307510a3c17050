// ConfigReader: typed fields of one JSON object, gathering a diagnostic for each that is wrong. Used by the parsers of
// model configs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "engine/base/diagnostic.h"
#include "engine/base/json.h"

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
  // An error where the field is absent.
  int64_t RequiredInt(std::string_view name, int64_t least);
  double RequiredNumber(std::string_view name, double least);

  // The field, or nullptr where it is absent or null.
  const JsonValue* Find(std::string_view name) const;
  // Adds an error about a field: what it says, what would be right, what to do.
  void Refuse(std::string_view name, std::string message, std::string required = {}, std::string help = {});

 private:
  template <class T>
  std::optional<T> RefuseKind(std::string_view name, const JsonValue& found, const char* wanted);

  const JsonValue& object_;
  std::string file_;
  std::string prefix_;
  Diagnostics& diagnostics_;
};

}  // namespace moonshard
