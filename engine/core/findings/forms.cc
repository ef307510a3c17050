#include "engine/core/findings/forms.h"

#include "engine/core/base/visible.h"

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

std::string WriteFindings(const Diagnostics& diagnostics, FindingForm form, bool color, const std::string& subject,
                          const std::vector<std::string>& notes) {
  switch (form) {
    case FindingForm::kText: return ToText(diagnostics, color);
    case FindingForm::kGithub: return GithubAnnotations(diagnostics);
    case FindingForm::kSarif: return VisibleJson(WriteJson(SarifLog(diagnostics, subject), 2)) + "\n";
    case FindingForm::kJson: break;
  }
  JsonValue::Object document = {{"format_version", kFindingsFormatVersion}, {"findings", ToJson(diagnostics)}};
  if (!notes.empty()) document["notes"] = JsonValue::Array(notes.begin(), notes.end());
  return VisibleJson(WriteJson(document, 2)) + "\n";
}

}  // namespace moonshard
