// Fix: the suggested fix of a finding as an edit that a program can apply: one word replaced by another at a known
// place.
#pragma once

#include <optional>
#include <string>

#include "engine/core/base/diagnostic.h"

namespace moonshard {

struct Fix {
  SourceSpan where;  // with line, column and length: the text to remove
  std::string text;  // the text to insert
};

// The edit for a help text "did you mean 'x'?" (base/text.h) whose caret is under the word that the message quotes.
// Nothing where the two differ, as for a pattern that the plan computes, or where the line has the word twice, so that
// the place is ambiguous. Nothing for one alternative of a pattern, whose help names the pattern without the others.
std::optional<Fix> FixOf(const Diagnostic& diagnostic);

}  // namespace moonshard
