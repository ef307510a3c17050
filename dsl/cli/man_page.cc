#include "dsl/cli/man_page.h"

#include "engine/base/text.h"

namespace moonshard {
namespace {

// A line of text: backslashes and hyphens as themselves, and no request at its beginning.
std::string Troff(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n')) out += "\\&";
      out += c;
    }
  }
  return out;
}

std::string Upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

std::string OptionText(const CommandOption& option) {
  std::string value;
  if (option.takes_value && option.place.empty()) {
    value = option.choices.empty() ? " \\fIVALUE\\fR" : " " + Troff(Join(option.choices, "|"));
  }
  const std::string name = option.place.empty() ? Join(option.names, ", ") : option.place;
  return ".TP\n\\fB" + Troff(name) + "\\fR" + value + "\n" + Troff(option.description) +
         (option.required ? " (required)" : "") + "\n";
}

}  // namespace

std::string ManPage(const CommandTree& tree, const std::string& version) {
  const std::vector<std::string> about = Split(tree.about, '\n');
  std::string out =
      ".TH " + Upper(tree.program) + " 1 \"\" \"" + tree.program + " " + version + "\" \"User Commands\"\n";
  out += ".SH NAME\n" + tree.program + " \\- " + Troff(about.front()) + "\n";
  out += ".SH SYNOPSIS\n";
  for (const CommandVerb& verb : tree.verbs) {
    out += ".B " + tree.program + " " + Troff(verb.name) + "\n";
    for (const CommandOption& option : verb.options) {
      if (!option.place.empty())
        out += (option.required ? "" : "[") + Troff(option.place) + (option.required ? "" : "]") + "\n";
    }
    out += "[\\fIoption\\fR]...\n.br\n";
  }
  out += ".SH DESCRIPTION\n";
  for (const std::string& line : about) out += Troff(line) + "\n.br\n";
  out += ".SH VERBS\n";
  for (const CommandVerb& verb : tree.verbs) {
    out += ".SS " + Troff(verb.name) + "\n" + Troff(verb.description) + "\n";
    for (const CommandOption& option : verb.options) out += OptionText(option);
  }
  out += ".SH OPTIONS\n";
  for (const CommandOption& option : tree.options) out += OptionText(option);
  return out;
}

}  // namespace moonshard
