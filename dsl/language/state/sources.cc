// Lua keeps the line of an instruction and no column. Columns are found by searching the token in the text of the line:
// as a separate name, outside of a comment. A token that occurs twice on its line may get the caret under the first
// occurrence; a line that does not contain it (a table over several lines) is quoted without a caret, or SpanOfKey()
// and SpanOfQuoted() look at the lines below.
#include "dsl/language/state/sources.h"

#include <algorithm>
#include <cctype>

#include "engine/core/base/text.h"

namespace moonshard {
namespace {

// Of a line, what a place quotes: rules and diagnostics are many, and each holds its own.
constexpr size_t kMostOfLine = 400;
constexpr int kMostLines = 200;  // searched for a key of a table that begins on a line

bool IsNameLetter(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// The part of a line before a comment; "--" within quotes is none.
std::string_view WithoutComment(std::string_view line) {
  char quote = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    if (quote != 0) {
      if (line[i] == '\\')
        ++i;
      else if (line[i] == quote)
        quote = 0;
    } else if (line[i] == '"' || line[i] == '\'') {
      quote = line[i];
    } else if (line.substr(i, 2) == "--") {
      return line.substr(0, i);
    }
  }
  return line;
}

}  // namespace

int ColumnOf(std::string_view line, std::string_view token) {
  if (token.empty()) return 0;
  line = WithoutComment(line);
  for (size_t at = 0; (at = line.find(token, at)) != std::string_view::npos; ++at) {
    const size_t end = at + token.size();
    const bool joined_before = at > 0 && IsNameLetter(token.front()) && IsNameLetter(line[at - 1]);
    const bool joined_after = end < line.size() && IsNameLetter(token.back()) && IsNameLetter(line[end]);
    if (!joined_before && !joined_after) return static_cast<int>(at) + 1;
  }
  return 0;
}

void Sources::Add(const std::string& name, std::string_view text, bool internal) {
  Text entry{Split(text, '\n'), internal};
  for (std::string& line : entry.lines) {
    if (line.ends_with('\r')) line.pop_back();
  }
  texts_.insert_or_assign(name, std::move(entry));
}

void Sources::AddLines(const std::string& name, int first_line, std::string_view text) {
  std::vector<std::string>& lines = texts_[name].lines;
  lines.resize(static_cast<size_t>(first_line - 1));
  for (const std::string& line : Split(text, '\n')) {
    lines.push_back(line);
    if (line.ends_with('\r')) lines.back().pop_back();
  }
}

bool Sources::IsInternal(const std::string& name) const {
  const auto found = texts_.find(name);
  return found != texts_.end() && found->second.internal;
}

SourceSpan Sources::SpanOf(const std::string& name, int line, std::string_view token) const {
  SourceSpan span;
  span.file = name;
  span.line = line;
  const auto found = texts_.find(name);
  if (found == texts_.end() || line < 1 || line > static_cast<int>(found->second.lines.size())) return span;
  const std::string& full = found->second.lines[static_cast<size_t>(line - 1)];
  span.column = ColumnOf(full, token);
  if (span.column + token.size() > kMostOfLine) span.column = 0;  // not in what is quoted
  span.text = full.substr(0, kMostOfLine);
  span.length = span.column > 0 ? static_cast<int>(token.size()) : 0;
  return span;
}

SourceSpan Sources::SpanOfKey(const std::string& name, int line, std::string_view key) const {
  for (int i = line; i < line + kMostLines; ++i) {
    SourceSpan span = SpanOf(name, i, key);
    if (i > line && span.text.empty() && span.column == 0 && SpanOf(name, i + 1).text.empty()) break;
    if (span.column == 0) continue;
    const size_t end = static_cast<size_t>(span.column - 1) + key.size();
    const bool quoted = end < span.text.size() && (span.text[end] == '"' || span.text[end] == '\'');
    const size_t next = span.text.find_first_not_of(quoted ? " \t]\"'" : " \t", end);
    const bool assigned = next != std::string::npos && span.text[next] == '=' &&
                          (next + 1 == span.text.size() || span.text[next + 1] != '=');
    if (assigned) return span;
  }
  return SpanOf(name, line, key);
}

SourceSpan Sources::SpanOfQuoted(const std::string& name, int line, std::string_view text) const {
  for (int i = line; i < line + kMostLines; ++i) {
    for (const char quote : {'"', '\''}) {
      SourceSpan span = SpanOf(name, i, quote + std::string(text) + quote);
      if (span.column == 0) continue;
      ++span.column;
      span.length -= 2;
      return span;
    }
  }
  return SpanOf(name, line);
}

int Sources::LastLineOf(const std::string& name, std::string_view word) const {
  const auto found = texts_.find(name);
  if (found == texts_.end()) return 0;
  const std::vector<std::string>& lines = found->second.lines;
  for (size_t i = lines.size(); i > 0; --i) {
    const size_t first = lines[i - 1].find_first_not_of(" \t");
    if (first != std::string::npos && ColumnOf(lines[i - 1], word) == static_cast<int>(first) + 1) {
      return static_cast<int>(i);
    }
  }
  return 0;
}

int Sources::CodeLineBefore(const std::string& name, int line) const {
  const auto found = texts_.find(name);
  if (found == texts_.end()) return 0;
  for (int i = std::min(line, static_cast<int>(found->second.lines.size())) - 1; i >= 1; --i) {
    const std::string_view code = WithoutComment(found->second.lines[static_cast<size_t>(i - 1)]);
    if (code.find_first_not_of(" \t") != std::string_view::npos) return i;
  }
  return 0;
}

}  // namespace moonshard
