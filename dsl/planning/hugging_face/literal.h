// Literal: a dict, list, string, number or constant in Python or JSON syntax, with the source location of each value.
// One parser reads both: Python's literals with comments, both kinds of quotes, trailing commas and adjacent strings,
// and JSON's true, false and null.
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
  std::string text;            // the string; a number as written; "true" or "false"
  std::vector<Literal> items;  // the items of a list or tuple
  std::vector<Entry> entries;  // the entries of a dict, in the order of the file
  SourceSpan where;

  bool is_dict() const { return kind == Kind::kDict; }
  bool is_text() const { return kind == Kind::kText; }
  // "a dict", "a list", "a string", "a number", "a constant": for messages.
  const char* KindName() const;
  // The value of a key of a dict; nullptr if there is no such key, or if this is not a dict.
  const Literal* Find(std::string_view key) const;
};

struct Literal::Entry {
  std::string key;
  SourceSpan where;  // of the key
  Literal value;
};

// Parses the literal that begins at byte `*position`, and moves `*position` to the first byte after the literal. `file`
// is the name of the text in diagnostics.
// Errors (kBadJson, with line and column): anything but a literal, an unclosed literal, a key that is not a string or
// is duplicated in one dict, more than 100 levels.
Result<Literal> ParseLiteral(std::string_view text, const std::string& file, size_t* position);

// Parses a text that contains one literal and nothing else. Errors: as above, and text after the literal.
Result<Literal> ParseLiteral(std::string_view text, const std::string& file);

// The line and column of byte `position` of the text; `length` is the length of the span in bytes.
SourceSpan SpanAt(std::string_view text, const std::string& file, size_t position, int length = 1);

}  // namespace moonshard
