// Diagnostics as JSON and back (forms.h).
#include <algorithm>
#include <limits>
#include <string_view>

#include "engine/core/findings/fix.h"
#include "engine/core/findings/forms.h"

namespace moonshard {
namespace {

JsonValue LocationJson(const SourceSpan& span) {
  JsonValue::Object out = {{"file", span.file}};
  if (span.line > 0) out["line"] = span.line;
  if (span.column > 0) out["column"] = span.column;
  if (span.length > 0) out["length"] = span.length;
  if (!span.text.empty()) out["text"] = span.text;
  return out;
}

// Reads members of one object; the first that is wrong is remembered. A member that was not read is wrong too: it is
// the sign of another version, whose meaning is not known here.
class ObjectReader {
 public:
  ObjectReader(const JsonValue& json, std::string& wrong) : json_(json), wrong_(wrong) {
    if (!json.is_object())
      Wrong(std::string("a diagnostic or a location is a value of type ") + json.KindName() + ", required: object");
  }

  const JsonValue* Take(const char* key) {
    const JsonValue* member = json_.Find(key);
    taken_ += member != nullptr ? 1 : 0;
    return member;
  }
  void Text(const char* key, std::string& value, bool required = false) {
    const JsonValue* member = Take(key);
    if (member == nullptr) {
      if (required) Wrong(std::string("'") + key + "' is missing");
    } else if (!member->is_string()) {
      Wrong(std::string("'") + key + "' is a value of type " + member->KindName() + ", required: string");
    } else {
      value = member->AsString();
    }
  }
  void Position(const char* key, int& value) {
    const JsonValue* member = Take(key);
    if (member == nullptr) return;
    if (!member->is_int() || member->AsInt() < 0 || member->AsInt() > std::numeric_limits<int>::max()) {
      return Wrong(std::string("'") + key + "' is not a position, required: an integer from 0 to 2147483647");
    }
    value = static_cast<int>(member->AsInt());
  }
  void Wrong(const std::string& what) {
    if (wrong_.empty()) wrong_ = what;
  }
  void End() {
    if (json_.is_object() && json_.AsObject().size() != taken_)
      Wrong("a diagnostic or a location has an unknown member");
  }

 private:
  const JsonValue& json_;
  std::string& wrong_;
  size_t taken_ = 0;
};

SourceSpan ReadLocation(const JsonValue& json, std::string& wrong) {
  SourceSpan span;
  ObjectReader reader(json, wrong);
  reader.Text("file", span.file, /*required=*/true);
  reader.Position("line", span.line);
  reader.Position("column", span.column);
  reader.Position("length", span.length);
  reader.Text("text", span.text);
  reader.End();
  return span;
}

Diagnostic ReadDiagnostic(const JsonValue& json, std::string& wrong) {
  Diagnostic d;
  std::string id;
  std::string severity;
  ObjectReader reader(json, wrong);
  reader.Text("id", id, /*required=*/true);
  reader.Text("severity", severity, /*required=*/true);
  reader.Text("message", d.message, /*required=*/true);
  reader.Text("path", d.path);
  reader.Text("declared", d.declared);
  reader.Text("required", d.required);
  reader.Text("help", d.help);
  if (const JsonValue* location = reader.Take("location")) d.where = ReadLocation(*location, wrong);
  if (const JsonValue* related = reader.Take("related_locations")) {
    if (!related->is_array()) {
      reader.Wrong("'related_locations' is not an array");
    } else {
      for (const JsonValue& span : related->AsArray()) d.related.push_back(ReadLocation(span, wrong));
    }
  }
  for (const char* derived : {"source", "fix", "related"}) reader.Take(derived);
  reader.End();

  const auto info = std::ranges::find(AllFindings(), std::string_view(id),
                                      [](const FindingInfo& one) { return std::string_view(one.id); });
  if (info == AllFindings().end()) {
    reader.Wrong("there is no finding '" + id + "'");
  } else {
    d.finding = info->finding;
  }
  constexpr Severity kSeverities[] = {Severity::kNote, Severity::kWarning, Severity::kError};
  const auto* known = std::ranges::find(kSeverities, severity, [](Severity s) { return std::string(ToString(s)); });
  if (known == std::end(kSeverities)) {
    reader.Wrong("there is no severity '" + severity + "'");
  } else {
    d.severity = *known;
  }
  return d;
}

}  // namespace

JsonValue ToJson(const Diagnostic& d) {
  JsonValue::Object out = {{"id", InfoOf(d.finding).id}, {"severity", ToString(d.severity)}, {"message", d.message}};
  const auto add = [&](const char* key, const std::string& value) {
    if (!value.empty()) out[key] = value;
  };
  add("source", d.where.ToString());
  add("path", d.path);
  add("declared", d.declared);
  add("required", d.required);
  add("help", d.help);
  if (d.where.known()) out["location"] = LocationJson(d.where);
  if (const std::optional<Fix> fix = FixOf(d)) {
    out["fix"] = JsonValue::Object{{"file", fix->where.file},
                                   {"line", fix->where.line},
                                   {"column", fix->where.column},
                                   {"length", fix->where.length},
                                   {"text", fix->text}};
  }
  JsonValue::Array related;
  JsonValue::Array locations;
  for (const SourceSpan& span : d.related) {
    related.emplace_back(span.ToString());
    locations.push_back(LocationJson(span));
  }
  if (!related.empty()) out["related"] = std::move(related);
  if (!locations.empty()) out["related_locations"] = std::move(locations);
  return out;
}

JsonValue::Array ToJson(const Diagnostics& diagnostics) {
  JsonValue::Array out;
  for (const Diagnostic& d : diagnostics) out.push_back(ToJson(d));
  return out;
}

std::optional<Diagnostics> ReadDiagnosticsJson(const JsonValue& json, std::string& wrong) {
  wrong.clear();
  Diagnostics out;
  if (!json.is_array()) {
    wrong = std::string("the diagnostics are a value of type ") + json.KindName() + ", required: array";
    return std::nullopt;
  }
  for (const JsonValue& one : json.AsArray()) out.push_back(ReadDiagnostic(one, wrong));
  if (!wrong.empty()) return std::nullopt;
  return out;
}

}  // namespace moonshard
