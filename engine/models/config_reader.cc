#include "engine/models/config_reader.h"

#include <utility>

#include "engine/base/text.h"

namespace moonshard {
namespace {

std::string AtLeast(const JsonValue& least) { return "at least " + WriteJson(least, 0); }

}  // namespace

const JsonValue* ConfigReader::Find(std::string_view name) const {
  const JsonValue* found = object_.Find(name);
  return found != nullptr && found->is_null() ? nullptr : found;
}

void ConfigReader::Refuse(std::string_view name, std::string message, std::string required, std::string help) {
  Diagnostic diagnostic = MakeDiagnostic(Finding::kUnsupportedModel, std::move(message));
  diagnostic.where.file = file_;
  diagnostic.path = prefix_ + std::string(name);
  if (const JsonValue* found = object_.Find(name)) diagnostic.declared = WriteJson(*found, 0);
  diagnostic.required = std::move(required);
  diagnostic.help = std::move(help);
  diagnostics_.push_back(std::move(diagnostic));
}

template <class T>
std::optional<T> ConfigReader::RefuseKind(std::string_view name, const JsonValue& found, const char* wanted) {
  Refuse(name, "config field '" + prefix_ + std::string(name) + "' is of kind " + found.KindName(), wanted);
  return std::nullopt;
}

std::optional<int64_t> ConfigReader::Int(std::string_view name, int64_t least) {
  const JsonValue* found = Find(name);
  if (found == nullptr) return std::nullopt;
  if (!found->is_int()) return RefuseKind<int64_t>(name, *found, "an integer");
  if (found->AsInt() < least) {
    Refuse(name, "config field '" + prefix_ + std::string(name) + "' is out of range", AtLeast(least));
    return std::nullopt;
  }
  return found->AsInt();
}

std::optional<double> ConfigReader::Number(std::string_view name, double least) {
  const JsonValue* found = Find(name);
  if (found == nullptr) return std::nullopt;
  if (!found->is_number()) return RefuseKind<double>(name, *found, "a number");
  if (!(found->AsDouble() >= least)) {
    Refuse(name, "config field '" + prefix_ + std::string(name) + "' is out of range", AtLeast(least));
    return std::nullopt;
  }
  return found->AsDouble();
}

std::optional<bool> ConfigReader::Bool(std::string_view name) {
  const JsonValue* found = Find(name);
  if (found == nullptr) return std::nullopt;
  if (!found->is_bool()) return RefuseKind<bool>(name, *found, "true or false");
  return found->AsBool();
}

std::optional<std::string> ConfigReader::String(std::string_view name) {
  const JsonValue* found = Find(name);
  if (found == nullptr) return std::nullopt;
  if (!found->is_string()) return RefuseKind<std::string>(name, *found, "a text");
  return found->AsString();
}

int64_t ConfigReader::RequiredInt(std::string_view name, int64_t least) {
  if (Find(name) == nullptr) {
    Refuse(name, "the config has no '" + prefix_ + std::string(name) + "'", "an integer, " + AtLeast(least),
           DidYouMean(name, object_.Keys(), 0));
    return least;
  }
  return Int(name, least).value_or(least);
}

double ConfigReader::RequiredNumber(std::string_view name, double least) {
  if (Find(name) == nullptr) {
    Refuse(name, "the config has no '" + prefix_ + std::string(name) + "'", "a number, " + AtLeast(least),
           DidYouMean(name, object_.Keys(), 0));
    return least;
  }
  return Number(name, least).value_or(least);
}

}  // namespace moonshard
