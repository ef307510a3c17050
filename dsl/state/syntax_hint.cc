#include "dsl/state/syntax_hint.h"

#include <algorithm>
#include <cctype>
#include <vector>

namespace moonshard {
namespace {

bool Has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

std::string_view LineOf(std::string_view text, int line) {
  for (int i = 1; i < line; ++i) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) return "";
    text.remove_prefix(end + 1);
  }
  return text.substr(0, text.find('\n'));
}

bool HasCurlyQuotes(std::string_view line) {
  // U+2018, U+2019, U+201C, U+201D and the angled ones.
  for (const char* quote : {"\xe2\x80\x98", "\xe2\x80\x99", "\xe2\x80\x9c", "\xe2\x80\x9d", "\xc2\xab", "\xc2\xbb"}) {
    if (Has(line, quote)) return true;
  }
  return false;
}

// `name: value` within the line.
bool HasColonKey(std::string_view line) {
  for (size_t i = 1; i + 1 < line.size(); ++i) {
    if (line[i] == ':' && std::isalnum(static_cast<unsigned char>(line[i - 1])) != 0 && line[i + 1] == ' ') return true;
  }
  return false;
}

// The line of the innermost bracket that is still open before `line` begins, or at its end; 0 where none is.
int LineOfOpen(std::string_view text, int last_line, char wanted) {
  std::vector<std::pair<char, int>> open;
  int line = 1;
  for (size_t i = 0; i < text.size() && line <= last_line; ++i) {
    const char c = text[i];
    if (c == '\n') {
      ++line;
    } else if (c == '-' && i + 1 < text.size() && text[i + 1] == '-') {
      while (i + 1 < text.size() && text[i + 1] != '\n') ++i;
    } else if (c == '"' || c == '\'') {
      for (++i; i < text.size() && text[i] != c && text[i] != '\n'; ++i) i += text[i] == '\\' ? 1 : 0;
      line += i < text.size() && text[i] == '\n' ? 1 : 0;
    } else if (c == '(' || c == '{' || c == '[') {
      open.emplace_back(c, line);
    } else if (c == ')' || c == '}' || c == ']') {
      const char partner = c == ')' ? '(' : c == '}' ? '{' : '[';
      if (open.empty() || open.back().first != partner) break;
      open.pop_back();
    }
  }
  return !open.empty() && open.back().first == wanted ? open.back().second : 0;
}

}  // namespace

SyntaxHint HintFor(const std::string& message, const std::string& token, std::string_view text, int line) {
  const std::string_view here = LineOf(text, line);
  const size_t first = here.find_first_not_of(" \t");
  const std::string_view trimmed = first == std::string_view::npos ? "" : here.substr(first);
  if (message.starts_with("invalid escape sequence")) return {"write re[[...]], or every backslash twice"};
  if (HasCurlyQuotes(here)) return {"quotes are straight: \"llama\""};
  if (message.starts_with("unfinished string")) return {"a text ends on its own line: its closing quote is missing"};
  if (trimmed.starts_with('#') || trimmed.starts_with("//")) return {"a comment begins with --"};
  if (Has(here, "!=") && token.starts_with('!')) return {"\"not equal\" is ~="};
  if (Has(here, token + "=") && !token.empty() && Has("+ - * /", token)) {
    return {"Lua has no " + token + "=: write n = n " + token + " 1"};
  }
  if (Has(here, "&&") || Has(here, "||")) return {"write and, or, not"};
  if (message.starts_with("')' expected near '='")) return {"keys stand in braces: colwise { output = replicate }"};
  if (message.starts_with("function arguments expected") && HasColonKey(here)) {
    return {"a key stands before an equals sign: { output = replicate }"};
  }
  if (message.starts_with("unexpected symbol") && trimmed.starts_with('{') && token == "{") {
    return {"a plan begins with return or local: return plan { ... }"};
  }
  if (token == ")" || token == "}" || token == "]") {
    for (const char open : {'(', '{', '['}) {
      const int at = LineOfOpen(text, line, open);
      if (at > 0 && (message.starts_with("unexpected symbol") || Has(message, "expected near"))) {
        return {std::string("a '") + open + "' of line " + std::to_string(at) + " is not closed", at};
      }
    }
  }
  return {};
}

}  // namespace moonshard
