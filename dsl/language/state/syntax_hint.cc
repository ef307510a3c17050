// Hints are tried from the most to the least specific, and the first that applies wins. Those that recognize a token
// which is not Lua at all (curly quotes, `!=`, `&&`) are certain and come first; the search for an unclosed bracket
// comes last, because brackets that do not match are also a consequence of the other mistakes. No hint is better than a
// wrong one: a rule applies only if both the message of Lua and the text of the line fit it.
#include "dsl/language/state/syntax_hint.h"

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
    } else if (text.substr(i).starts_with("--[[") || text.substr(i).starts_with("[[")) {
      const size_t end = std::min(text.find("]]", i), text.size());
      line += static_cast<int>(std::ranges::count(text.substr(i, end - i), '\n'));
      i = end + 1;
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

// The text in quotes right before the first ':', as the key of a Python dict; "" where there is none.
std::string_view DictKey(std::string_view line) {
  for (size_t colon = line.find(':'); colon != std::string_view::npos; colon = line.find(':', colon + 1)) {
    const std::string_view before = line.substr(0, line.find_last_not_of(" \t", colon == 0 ? 0 : colon - 1) + 1);
    if (before.size() < 2 || (before.back() != '"' && before.back() != '\'')) continue;
    const size_t open = before.rfind(before.back(), before.size() - 2);
    if (open != std::string_view::npos) return before.substr(open + 1, before.size() - open - 2);
  }
  return "";
}

// The line of the first "else if" outside comments; 0 where there is none.
int LineOfElseIf(std::string_view text) {
  int number = 0;
  while (!text.empty()) {
    ++number;
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    line = line.substr(0, line.find("--"));
    for (size_t at = 0; (at = line.find("else", at)) != std::string_view::npos; at += 4) {
      const size_t next = line.find_first_not_of(" \t", at + 4);
      const std::string_view rest = next == std::string_view::npos ? "" : line.substr(next);
      if (next > at + 4 && rest.starts_with("if") &&
          (rest.size() == 2 || std::isalnum(static_cast<unsigned char>(rest[2])) == 0))
        return number;
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return 0;
}

// What is still open where the text ends.
SyntaxHint OpenAtEnd(std::string_view text, int last_line) {
  for (const char open : {'(', '{', '['}) {
    const int at = LineOfOpen(text, last_line, open);
    if (at > 0) return {std::string("the '") + open + "' on line " + std::to_string(at) + " is not closed", at};
  }
  return {};
}

}  // namespace

SyntaxHint HintFor(const std::string& message, const std::string& token, std::string_view text, int line) {
  const std::string_view here = LineOf(text, line);
  const size_t first = here.find_first_not_of(" \t");
  const std::string_view trimmed = first == std::string_view::npos ? "" : here.substr(first);
  if (message.starts_with("invalid escape sequence")) return {"write re[[...]], or double every backslash"};
  if (HasCurlyQuotes(here)) return {"write straight quotes: \"llama\""};
  if (message.starts_with("unfinished string")) return {"a string must end on its line: the closing quote is missing"};
  if (trimmed.starts_with('#') || trimmed.starts_with("//")) return {"a comment begins with --"};
  if (Has(here, "!=") && token.starts_with('!')) return {"write ~= for \"not equal\""};
  if (Has(here, token + "=") && !token.empty() && Has("+ - * /", token)) {
    return {"Lua has no " + token + "=: write n = n " + token + " 1"};
  }
  if (Has(here, "&&") || Has(here, "||")) return {"write and, or, not"};
  if (message.starts_with("')' expected near '='")) return {"write keys in braces: colwise { output = replicate }"};
  if (token == ":" && !DictKey(here).empty()) {
    const std::string key(DictKey(here));
    return {"write a key as [\"" + key + "\"] = ..., and a rule as at(\"" + key +
            "\", colwise {}); moonshard import FILE converts a Hugging Face plan"};
  }
  if (Has(message, "to close 'if'") || Has(message, "'end' expected")) {
    const int at = LineOfElseIf(text);
    if (at > 0) return {"'else if' opens a second 'if', which needs its own 'end'; write elseif", at};
  }
  if (message == "unexpected symbol near <eof>") return OpenAtEnd(text, line);
  if (message.starts_with("function arguments expected") && HasColonKey(here)) {
    return {"write an equals sign after a key: { output = replicate }"};
  }
  if (message.starts_with("unexpected symbol") && trimmed.starts_with('{') && token == "{") {
    return {"a plan begins with return or local: return plan { ... }"};
  }
  if (token == ")" || token == "}" || token == "]") {
    for (const char open : {'(', '{', '['}) {
      const int at = LineOfOpen(text, line, open);
      if (at > 0 && (message.starts_with("unexpected symbol") || Has(message, "expected near"))) {
        return {std::string("a '") + open + "' on line " + std::to_string(at) + " is not closed", at};
      }
    }
  }
  return {};
}

}  // namespace moonshard
