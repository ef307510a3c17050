#include "engine/base/diagnostic.h"

#include <algorithm>

namespace moonshard {
namespace {

constexpr const char* kIndent = "    ";

// The source line with its number, and the caret under it where the column is known.
std::string Excerpt(const SourceSpan& span) {
  if (span.text.empty()) return "";
  const std::string number = std::to_string(span.line);
  std::string out = "\n" + std::string(kIndent) + number + " | " + span.text;
  if (span.column > 0) {
    out += "\n" + std::string(kIndent) + std::string(number.size(), ' ') + " | ";
    // Tabs are kept, so that the caret stands under its column whatever a terminal's tab width is.
    for (int i = 0; i + 1 < span.column && i < static_cast<int>(span.text.size()); ++i) {
      out += span.text[static_cast<size_t>(i)] == '\t' ? '\t' : ' ';
    }
    out += std::string(static_cast<size_t>(std::max(1, span.length)), '^');
  }
  return out;
}

void AddLine(std::string& out, const char* label, const std::string& value) {
  if (!value.empty()) out += "\n" + std::string(kIndent) + label + ": " + value;
}

}  // namespace

std::string SourceSpan::ToString() const { return line > 0 ? file + ":" + std::to_string(line) : file; }

std::string Diagnostic::ToText() const {
  const FindingInfo& info = InfoOf(finding);
  std::string out = where.known() ? where.ToString() + ": " : "";
  out += std::string(moonshard::ToString(severity)) + "[" + info.id + "]: " + message;
  out += Excerpt(where);
  AddLine(out, "at", path);
  AddLine(out, "declared", declared);
  AddLine(out, "required", required);
  AddLine(out, "help", help);
  for (const SourceSpan& span : related) {
    AddLine(out, "see", span.ToString());
    out += Excerpt(span);
  }
  return out;
}

Diagnostic MakeDiagnostic(Finding finding, std::string message, SourceSpan where) {
  Diagnostic d;
  d.finding = finding;
  d.severity = InfoOf(finding).severity;
  d.message = std::move(message);
  d.where = std::move(where);
  return d;
}

bool HasErrors(const Diagnostics& diagnostics) {
  return std::ranges::any_of(diagnostics, [](const Diagnostic& d) { return d.severity == Severity::kError; });
}

std::string ToText(const Diagnostics& diagnostics) {
  std::string out;
  for (const Diagnostic& d : diagnostics) out += d.ToText() + "\n";
  return out;
}

PlanError::PlanError(Diagnostics diagnostics)
    : std::runtime_error(ToText(diagnostics)), diagnostics_(std::move(diagnostics)) {}

}  // namespace moonshard
