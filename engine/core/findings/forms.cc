#include "engine/core/findings/forms.h"

#include "engine/core/findings/fix.h"

namespace moonshard {

std::optional<FindingForm> FindingFormFromName(std::string_view name) {
  if (name == "text") return FindingForm::kText;
  if (name == "json") return FindingForm::kJson;
  if (name == "sarif") return FindingForm::kSarif;
  if (name == "github") return FindingForm::kGithub;
  return std::nullopt;
}

std::string FindingFormName(FindingForm form) {
  switch (form) {
    case FindingForm::kText: return "text";
    case FindingForm::kJson: return "json";
    case FindingForm::kSarif: return "sarif";
    case FindingForm::kGithub: return "github";
  }
  return "text";
}

std::string WriteFindings(const Diagnostics& diagnostics, FindingForm form, bool color, const std::string& subject) {
  switch (form) {
    case FindingForm::kText: return ToText(diagnostics, color);
    case FindingForm::kGithub: return GithubAnnotations(diagnostics);
    case FindingForm::kSarif: return WriteJson(SarifLog(diagnostics, subject), 2) + "\n";
    case FindingForm::kJson: break;
  }
  JsonValue::Array list;
  for (const Diagnostic& d : diagnostics) list.push_back(ToJson(d));
  return WriteJson(JsonValue::Object{{"format_version", kFindingsFormatVersion}, {"findings", std::move(list)}}, 2) +
         "\n";
}

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
  if (d.where.known()) {
    JsonValue::Object location = {{"file", d.where.file}};
    if (d.where.line > 0) location["line"] = d.where.line;
    if (d.where.column > 0) location["column"] = d.where.column;
    if (d.where.length > 0) location["length"] = d.where.length;
    out["location"] = std::move(location);
  }
  if (const std::optional<Fix> fix = FixOf(d)) {
    out["fix"] = JsonValue::Object{{"file", fix->where.file},
                                   {"line", fix->where.line},
                                   {"column", fix->where.column},
                                   {"length", fix->where.length},
                                   {"text", fix->text}};
  }
  JsonValue::Array related;
  for (const SourceSpan& span : d.related) related.emplace_back(span.ToString());
  if (!related.empty()) out["related"] = std::move(related);
  return out;
}

}  // namespace moonshard
