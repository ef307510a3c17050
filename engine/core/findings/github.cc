// docs.github.com, "Workflow commands for GitHub Actions": a message's %, CR and LF are written as %25, %0D and %0A; in
// a property : and , too.
#include "engine/core/base/visible.h"
#include "engine/core/findings/forms.h"

namespace moonshard {
namespace {

std::string Escaped(const std::string& text, bool property) {
  std::string out;
  for (char c : property ? Visible(text) : text) {
    switch (c) {
      case '%': out += "%25"; break;
      case '\r': out += "%0D"; break;
      case '\n': out += "%0A"; break;
      case ':': out += property ? "%3A" : ":"; break;
      case ',': out += property ? "%2C" : ","; break;
      default: out += c;
    }
  }
  return out;
}

const char* CommandOf(Severity severity) {
  switch (severity) {
    case Severity::kNote: return "notice";
    case Severity::kWarning: return "warning";
    case Severity::kError: break;
  }
  return "error";
}

// The message, then each other field on a line; further lines of a field are indented.
std::string TextOf(const Diagnostic& d) {
  std::string out = SafeText(d.message);
  const auto add = [&](const char* label, const std::string& value) {
    if (!value.empty()) out += std::string("\n") + label + ": " + SafeText(value);
  };
  add("at", d.path);
  add("declared", d.declared);
  add("required", d.required);
  add("help", d.help);
  for (const SourceSpan& span : d.related) add("see", span.ToString());
  return out;
}

}  // namespace

std::string GithubAnnotations(const Diagnostics& diagnostics) {
  std::string out;
  for (const Diagnostic& d : diagnostics) {
    const FindingInfo& info = InfoOf(d.finding);
    out += std::string("::") + CommandOf(d.severity) + " ";
    if (d.where.known()) {
      out += "file=" + Escaped(d.where.file, true) + ",";
      if (d.where.line > 0) out += "line=" + std::to_string(d.where.line) + ",";
      if (d.where.line > 0 && d.where.column > 0) {
        out += "col=" + std::to_string(d.where.column) + ",";
        if (d.where.length > 0) out += "endColumn=" + std::to_string(d.where.column + d.where.length) + ",";
      }
    }
    out += "title=" + Escaped(std::string(info.id) + " " + info.title, true) + "::" + Escaped(TextOf(d), false) + "\n";
  }
  return out;
}

}  // namespace moonshard
