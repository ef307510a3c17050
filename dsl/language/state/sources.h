// Sources: the texts of an evaluation by chunk name, so that diagnostics can quote a line and put a caret under a
// token. For an error in an internal text (stdlib), diagnostics show the line of the caller.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/base/diagnostic.h"

namespace moonshard {

class Sources {
 public:
  // Adds or replaces the text `name`. `internal` marks an internal text.
  void Add(const std::string& name, std::string_view text, bool internal);
  // Adds part of a text that arrives in several parts: `text` starts at line `first_line` (from 1). Earlier lines are
  // kept, later lines are dropped.
  void AddLines(const std::string& name, int first_line, std::string_view text);
  // Returns whether the text was added as internal; false for an unknown name.
  bool IsInternal(const std::string& name) const;
  // Returns the place of a line (from 1) with its text, and with a column if the line contains `token` as a separate
  // token outside of a comment.
  SourceSpan SpanOf(const std::string& name, int line, std::string_view token = {}) const;
  // Returns the first place at or below `line` at which `key` (also ["key"]) precedes a '=': a key in the table of a
  // call that starts on `line` and may span several lines. Returns SpanOf(name, line, key) if there is no such place.
  SourceSpan SpanOfKey(const std::string& name, int line, std::string_view key) const;
  // Returns the first place at or below `line` that contains `text` in quotes: an entry in the table of a call that
  // starts on `line`. Returns SpanOf(name, line) if there is no such place.
  SourceSpan SpanOfQuoted(const std::string& name, int line, std::string_view text) const;
  // Returns the number of the last line that begins with `word` after blanks; 0 if there is no such line.
  int LastLineOf(const std::string& name, std::string_view word) const;
  // Returns the number of the last line before `line` that contains more than blanks and comments; 0 if there is no
  // such line.
  int CodeLineBefore(const std::string& name, int line) const;

 private:
  struct Text {
    std::vector<std::string> lines;
    bool internal = false;
  };
  std::map<std::string, Text> texts_;
};

// Returns the column (from 1) of the first occurrence of `token` in `line` as a separate name before a comment; 0 if
// there is no occurrence.
int ColumnOf(std::string_view line, std::string_view token);

}  // namespace moonshard
