// Literal: a dict, list, text, number or constant as Python and JSON write them, with the line of each. One reader for
// both: Python's dict literals with comments, either quote, trailing commas and adjacent texts, and JSON's true, false
// and null.
// Stage after: plan_file.h.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/core/base/result.h"

namespace moonshard {

struct Literal {
  enum class Kind { kNone, kBool, kNumber, kText, kList, kDict };
  struct Entry;

  Kind kind = Kind::kNone;
  std::string text;            // of a string; of a number as written; "true" or "false"
  std::vector<Literal> items;  // of a list or tuple
  std::vector<Entry> entries;  // of a dict, in the order of the file
  SourceSpan where;

  bool is_dict() const { return kind == Kind::kDict; }
  bool is_text() const { return kind == Kind::kText; }
  // "a dict", "a list", "a text", "a number", "a constant": for messages.
  const char* KindName() const;
  // The value under a key of a dict; nullptr where there is none.
  const Literal* Find(std::string_view key) const;
};

struct Literal::Entry {
  std::string key;
  SourceSpan where;  // of the key
  Literal value;
};

// The literal that begins at `*position`, which then points after it. `file` is the name of the text in diagnostics.
// Errors (kBadJson, with line and column): anything but a literal, an unclosed one, a key that is not a string or is
// duplicated in one dict, more than 100 levels.
Result<Literal> ParseLiteral(std::string_view text, const std::string& file, size_t* position);

// The same for a text that contains nothing else.
Result<Literal> ParseLiteral(std::string_view text, const std::string& file);

// The place of a byte of a text.
SourceSpan SpanAt(std::string_view text, const std::string& file, size_t position, int length = 1);

}  // namespace moonshard
