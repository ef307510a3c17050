// Sources: the texts of an evaluation by chunk name, so that diagnostics can quote the line and put a caret under the
// word. Internal texts (stdlib) are never blamed: the line to change is the caller's.
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
  // Lines of a text that comes shard by shard: `text` stands from line `first_line` on, what is before it stays.
  void AddLines(const std::string& name, int first_line, std::string_view text);
  bool IsInternal(const std::string& name) const;
  // The place with its line text; with a column where `token` stands in that line as a word of its own, outside a
  // comment.
  SourceSpan SpanOf(const std::string& name, int line, std::string_view token = {}) const;
  // The first place at or below `line` where `key` (also ["key"]) stands before a '=': a key of a table that a call on that
  // line takes, written over several lines. The place of the line itself where there is none.
  SourceSpan SpanOfKey(const std::string& name, int line, std::string_view key) const;
  // The first place at or below `line` where `text` stands in quotes: an entry of such a table. The line itself where there
  // is none.
  SourceSpan SpanOfQuoted(const std::string& name, int line, std::string_view text) const;
  // The last line that begins with `word` (behind blanks); 0 where none does.
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

// Where `token` first stands in `line` with no letter of a name beside it, before a comment: its column from 1; 0 where
// it does not.
int ColumnOf(std::string_view line, std::string_view token);

}  // namespace moonshard
