#include "engine/base/diagnostic.h"

#include <algorithm>

namespace moonshard {
namespace {

constexpr const char* kIndent = "    ";
constexpr size_t kMostOfLine = 400;

// The source line with its number, and the caret under it where the column is known.
std::string Excerpt(const SourceSpan& span) {
  if (span.text.empty()) return "";
  const std::string number = std::to_string(span.line);
  const std::string line = SafeText(span.text, kMostOfLine);
  std::string out = "\n" + std::string(kIndent) + number + " | " + line;
  if (span.column > 0 && line.starts_with(std::string_view(span.text).substr(0, static_cast<size_t>(span.column)))) {
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
  if (!value.empty()) out += "\n" + std::string(kIndent) + label + ": " + SafeText(value);
}

}  // namespace

std::string SafeText(std::string_view text, size_t most) {
  size_t end = std::min(text.size(), most);
  while (end < text.size() && end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  std::string out;
  const auto add_code = [&](char c) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    const auto byte = static_cast<unsigned char>(c);
    out += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 0xF]};
  };
  for (size_t i = 0; i < end; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < end ? text[i + 1] : 0);
    if (text[i] == '\n') {
      out += "\n" + std::string(kIndent);
    } else if (byte == 0xC2 && next >= 0x80 && next < 0xA0) {  // U+0080 to U+009F are control characters too
      add_code(text[i]);
      add_code(text[++i]);
    } else if ((byte < 0x20 && text[i] != '\t') || byte == 0x7F) {
      add_code(text[i]);
    } else {
      out += text[i];
    }
  }
  if (end < text.size()) out += "... (" + std::to_string(text.size()) + " bytes)";
  return out;
}

std::string SourceSpan::ToString() const { return line > 0 ? file + ":" + std::to_string(line) : file; }

std::string Diagnostic::ToText() const {
  const FindingInfo& info = InfoOf(finding);
  std::string out = where.known() ? SafeText(where.ToString()) + ": " : "";
  out += std::string(moonshard::ToString(severity)) + "[" + info.id + "]: " + SafeText(message);
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
