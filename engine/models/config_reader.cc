// Every field that is looked up is recorded. After a model has read its config, the fields that remain are those that
// it does not compute with: a field with a meaning elsewhere would change the result there and is ignored here, which
// is a warning. Names that are known to have no effect are left out, and a name that no architecture knows is only a
// note, unless it resembles a field that was read: then it is probably a typing error.
#include "engine/models/config_reader.h"

#include <algorithm>
#include <cmath>

#include "engine/core/base/text.h"
#include "engine/io/config/config_ranges.h"

namespace moonshard {
namespace {

std::string AtLeast(const JsonValue& least) { return "at least " + WriteJson(least, 0); }

const JsonValue& EmptyObject() {
  static const JsonValue empty{JsonValue::Object{}};
  return empty;
}

}  // namespace

const JsonValue* ConfigReader::Find(std::string_view name) const {
  asked_.emplace(name);
  const JsonValue* found = object_.Find(name);
  return found != nullptr && found->is_null() ? nullptr : found;
}

ConfigReader ConfigReader::Object(std::string_view name) {
  const JsonValue* found = Find(name);
  if (found != nullptr && !found->is_object()) {
    RefuseKind<int>(name, *found, "an object");
    found = nullptr;
  }
  return {found == nullptr ? EmptyObject() : *found, file_, prefix_ + std::string(name) + ".", diagnostics_};
}

void ConfigReader::RequireBool(std::string_view name, bool only, std::string message) {
  if (Bool(name).value_or(only) != only) Refuse(name, std::move(message), only ? "true" : "false");
}

void ConfigReader::WarnUnused(std::string_view name, std::string_view user) {
  const JsonValue* found = Find(name);
  if (found == nullptr || (found->is_bool() && !found->AsBool())) return;
  Refuse(name, std::string(user) + " does not use config field '" + prefix_ + std::string(name) + "'");
  diagnostics_.back().severity = Severity::kWarning;
}

void ConfigReader::NameUnread(std::string_view user, const std::vector<std::string>& neutral,
                              const std::vector<std::string>& meaningful) {
  const auto among = [](const std::vector<std::string>& names, const std::string& name) {
    return std::binary_search(names.begin(), names.end(), name);
  };
  const std::vector<std::string> known(asked_.begin(), asked_.end());
  for (const std::string& name : object_.Keys()) {
    if (among(known, name) || among(neutral, name)) continue;
    const size_t before = diagnostics_.size();
    WarnUnused(name, user);
    if (diagnostics_.size() == before) continue;
    diagnostics_.back().help = DidYouMean(name, known, 0);
    if (diagnostics_.back().help.empty() && !among(meaningful, name)) diagnostics_.back().severity = Severity::kNote;
  }
}

void ConfigReader::Refuse(std::string_view name, std::string message, std::string required, std::string help) {
  Diagnostic diagnostic = MakeDiagnostic(Finding::kUnsupportedModel, std::move(message));
  diagnostic.where.file = file_;
  diagnostic.path = prefix_ + std::string(name);
  if (const JsonValue* found = object_.Find(name)) diagnostic.declared = WriteJson(*found, 0);
  diagnostic.required = std::move(required);
  diagnostic.help = std::move(help);
  diagnostics_.push_back(std::move(diagnostic));
  refused_.emplace(name);
}

bool ConfigReader::Sound(std::initializer_list<std::string_view> names) const {
  return std::ranges::none_of(names, [this](std::string_view name) { return refused_.contains(name); });
}

template <class T>
std::optional<T> ConfigReader::RefuseKind(std::string_view name, const JsonValue& found, const char* wanted) {
  Refuse(name, "config field '" + prefix_ + std::string(name) + "' has the JSON type " + found.KindName(), wanted);
  return std::nullopt;
}

std::optional<int64_t> ConfigReader::Int(std::string_view name, int64_t least) {
  const JsonValue* found = Find(name);
  if (found == nullptr) return std::nullopt;
  if (!found->is_int()) return RefuseKind<int64_t>(name, *found, "an integer");
  if (found->AsInt() < least || found->AsInt() > MostOf(name)) {
    Refuse(name, "config field '" + prefix_ + std::string(name) + "' is out of range",
           found->AsInt() < least ? AtLeast(least) : "at most " + std::to_string(MostOf(name)));
    return std::nullopt;
  }
  return found->AsInt();
}

std::optional<double> ConfigReader::Number(std::string_view name, double least, double most) {
  const JsonValue* found = Find(name);
  if (found == nullptr) return std::nullopt;
  if (!found->is_number()) return RefuseKind<double>(name, *found, "a number");
  const double number = found->AsDouble();
  if (!(number >= least) || !(number <= most)) {
    const bool bounded = most < std::numeric_limits<double>::max();
    Refuse(name, "config field '" + prefix_ + std::string(name) + "' is out of range",
           AtLeast(least) + (bounded ? ", and at most " + WriteJson(most, 0) : ", and finite"));
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
  if (!found->is_string()) return RefuseKind<std::string>(name, *found, "a string");
  return found->AsString();
}

template <class T, class Read>
std::optional<std::vector<T>> ConfigReader::List(std::string_view name, const char* wanted, Read read) {
  const JsonValue* found = Find(name);
  if (found == nullptr) return std::nullopt;
  if (!found->is_array()) return RefuseKind<std::vector<T>>(name, *found, wanted);
  std::vector<T> out;
  for (const JsonValue& element : found->AsArray()) {
    const std::optional<T> value = read(element);
    if (!value) return RefuseKind<std::vector<T>>(name, element, wanted);
    out.push_back(*value);
  }
  return out;
}

std::optional<std::vector<std::string>> ConfigReader::Strings(std::string_view name) {
  return List<std::string>(name, "a list of strings", [](const JsonValue& value) {
    return value.is_string() ? std::optional(value.AsString()) : std::nullopt;
  });
}

std::optional<std::vector<int64_t>> ConfigReader::Ints(std::string_view name) {
  return List<int64_t>(name, "a list of integers", [](const JsonValue& value) {
    return value.is_int() ? std::optional(value.AsInt()) : std::nullopt;
  });
}

std::optional<std::vector<double>> ConfigReader::Numbers(std::string_view name) {
  return List<double>(name, "a list of numbers", [](const JsonValue& value) {
    return value.is_number() ? std::optional(value.AsDouble()) : std::nullopt;
  });
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
