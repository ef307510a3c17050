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

// Returns the edit for a diagnostic whose help is "did you mean 'x'?" (base/text.h) and whose caret underlines the word
// that the message quotes. Returns nullopt if the underlined word differs from the quoted word (as for a pattern that
// the plan computes), if the line has the word twice, so that the place is ambiguous, and for kUnmatchedAlternative.
std::optional<Fix> FixOf(const Diagnostic& diagnostic);

}  // namespace moonshard
