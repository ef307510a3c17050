#include "engine/core/base/diagnostic.h"

#include <algorithm>

#include "engine/core/base/visible.h"

namespace moonshard {
namespace {

constexpr const char* kIndent = "    ";
constexpr const char* kContinued = "        ";  // further lines of a text: deeper than any label
constexpr size_t kMostColumns = 160;            // of a source line
constexpr const char* kCut = "...";

// The codes of a terminal's colours.
constexpr const char* kBold = "1";
constexpr const char* kGreen = "1;32";
constexpr const char* kBlue = "34";

const char* ColorOf(Severity severity) {
  switch (severity) {
    case Severity::kNote: return "1;36";
    case Severity::kWarning: return "1;35";
    case Severity::kError: return "1;31";
  }
  return kBold;
}

std::string Painted(const std::string& text, const char* code, bool color) {
  return color && !text.empty() ? "\033[" + std::string(code) + "m" + text + "\033[0m" : text;
}

bool ContinuesCharacter(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// Control bytes are blanks, so that columns stay; what else cannot be shown is an escape.
std::string ShownSource(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    const bool control = (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7F;
    if (control) c = ' ';
  }
  return VisibleLines(out);
}

// A source line as it is shown: how its first bytes are left out, and where the caret begins in what remains.
struct ShownLine {
  std::string text;
  size_t caret = 0;   // bytes before it
  size_t length = 1;  // characters that it underlines
};

ShownLine Shown(const SourceSpan& span) {
  ShownLine out;
  const std::string_view line = span.text;
  const size_t caret = std::min(static_cast<size_t>(std::max(span.column - 1, 0)), line.size());
  out.text = ShownSource(line.substr(0, caret));
  out.caret = out.text.size();
  out.text += ShownSource(line.substr(caret));
  out.length = static_cast<size_t>(std::max(1, span.length));
  size_t begin = 0;
  if (out.text.size() > kMostColumns && out.caret > kMostColumns / 2) begin = out.caret - kMostColumns / 2;
  while (begin > 0 && ContinuesCharacter(out.text[begin])) --begin;
  size_t end = std::min(out.text.size(), begin + kMostColumns);
  while (end < out.text.size() && ContinuesCharacter(out.text[end])) ++end;
  const std::string before = begin > 0 ? kCut : "";
  const std::string after = end < out.text.size() ? kCut : "";
  out.length = std::min(out.length, std::max<size_t>(1, end - std::min(out.caret, end)));
  out.caret = out.caret - begin + before.size();
  out.text = before + out.text.substr(begin, end - begin) + after;
  return out;
}

// The source line with its number, and the caret under it where the column is known.
std::string Excerpt(const SourceSpan& span, bool color) {
  if (span.text.empty()) return "";
  const ShownLine line = Shown(span);
  const std::string number = std::to_string(span.line);
  std::string out = "\n" + std::string(kIndent) + Painted(number + " |", kBlue, color) + " " + line.text;
  if (span.column > 0) {
    out += "\n" + std::string(kIndent) + Painted(std::string(number.size(), ' ') + " |", kBlue, color) + " ";
    for (size_t i = 0; i < line.caret; ++i) {
      // Tabs are kept, so that the caret is under its column whatever a terminal's tab width is.
      if (!ContinuesCharacter(line.text[i])) out += line.text[i] == '\t' ? '\t' : ' ';
    }
    out += Painted(std::string(line.length, '^'), kGreen, color);
  }
  return out;
}

void AddLine(std::string& out, const char* label, const std::string& value, bool color) {
  if (!value.empty()) {
    out += "\n" + std::string(kIndent) + Painted(label + std::string(":"), kBold, color) + " " + SafeText(value);
  }
}

}  // namespace

std::string SafeText(std::string_view text, size_t most) {
  size_t end = std::min(text.size(), most);
  while (end < text.size() && end > 0 && ContinuesCharacter(text[end])) --end;
  std::string out = VisibleLines(text.substr(0, end), kContinued);
  if (end < text.size()) out += "... (" + std::to_string(text.size()) + " bytes)";
  return out;
}

std::string SourceSpan::ToString() const { return line > 0 ? file + ":" + std::to_string(line) : file; }

std::string Diagnostic::ToText(bool color) const {
  const FindingInfo& info = InfoOf(finding);
  std::string out = where.known() ? Painted(SafeText(where.ToString()) + ":", kBold, color) + " " : "";
  out += Painted(std::string(moonshard::ToString(severity)) + "[" + info.id + "]:", ColorOf(severity), color) + " " +
         Painted(SafeText(message), kBold, color);
  out += Excerpt(where, color);
  AddLine(out, "at", path, color);
  AddLine(out, "declared", declared, color);
  AddLine(out, "required", required, color);
  AddLine(out, "help", help, color);
  for (const SourceSpan& span : related) {
    AddLine(out, "see", span.ToString(), color);
    out += Excerpt(span, color);
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

std::string ToText(const Diagnostics& diagnostics, bool color) {
  std::string out;
  for (const Diagnostic& d : diagnostics) out += d.ToText(color) + "\n";
  return out;
}

PlanError::PlanError(Diagnostics diagnostics)
    : std::runtime_error(ToText(diagnostics)), diagnostics_(std::move(diagnostics)) {}

}  // namespace moonshard
