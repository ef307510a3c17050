// Sources: the texts of an evaluation by chunk name, so that diagnostics can quote the line and put a caret under a
// token. Diagnostics do not blame internal texts (stdlib): the line to change is that of the caller.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/base/diagnostic.h"

namespace moonshard {

class Sources {
 public:
  void Add(const std::string& name, std::string_view text, bool internal);
  // Lines of a text that arrives in several parts: `text` starts at line `first_line`; the lines before are kept.
  void AddLines(const std::string& name, int first_line, std::string_view text);
  bool IsInternal(const std::string& name) const;
  // The place with its line text; with a column if the line contains `token` as a separate token outside of a comment.
  SourceSpan SpanOf(const std::string& name, int line, std::string_view token = {}) const;
  // The first place at or below `line` where `key` (also ["key"]) precedes a '=': a key of the table of a call on that
  // line, written over several lines. The place of the line if there is none.
  SourceSpan SpanOfKey(const std::string& name, int line, std::string_view key) const;
  // The first place at or below `line` that contains `text` in quotes: an entry of such a table. The line itself if
  // there is none.
  SourceSpan SpanOfQuoted(const std::string& name, int line, std::string_view text) const;
  // The last line that begins with `word` after blanks; 0 if there is none.
  int LastLineOf(const std::string& name, std::string_view word) const;
  // The last line before `line` that holds more than blanks and comments; 0 where there is none.
  int CodeLineBefore(const std::string& name, int line) const;

 private:
  struct Text {
    std::vector<std::string> lines;
    bool internal = false;
  };
  std::map<std::string, Text> texts_;
};

// The column, from 1, of the first occurrence of `token` in `line` as a separate name, before a comment; 0 if there is
// none.
int ColumnOf(std::string_view line, std::string_view token);

}  // namespace moonshard
