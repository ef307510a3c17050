// Fix: a finding's suggested fix as an edit that a program can make: one word in place of another, at a known place.
#pragma once

#include <optional>
#include <string>

#include "engine/core/base/diagnostic.h"

namespace moonshard {

struct Fix {
  SourceSpan where;  // with line, column and length: what is taken away
  std::string text;  // what stands there instead
};

// Where the help says "did you mean 'x'?" (base/text.h) and the caret stands under the very word that the message quotes.
// Nothing where the two differ, as for a pattern that was put together while the plan ran, or where the line has the word
// twice: nobody could tell what to change then. Nothing either for one alternative of a pattern, whose help speaks of the
// pattern without the others.
std::optional<Fix> FixOf(const Diagnostic& diagnostic);

}  // namespace moonshard
