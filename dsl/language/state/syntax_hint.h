// SyntaxHint: a suggested fix for a text that is not valid Lua. Lua reports only the token at which parsing failed; the
// common causes are syntax of other languages, an unclosed bracket, and typographic quotes.
#pragma once

#include <string>
#include <string_view>

namespace moonshard {

struct SyntaxHint {
  std::string help;
  int line = 0;  // a second line to show, such as the line of an unclosed bracket; 0 for no second line
};

// Returns the hint for a syntax error in `text`. `message` is Lua's message without the leading chunk name and line
// number; `token` is the token in that message; `line` (from 1) is the line of the token. `help` of the result is empty
// if no hint applies.
SyntaxHint HintFor(const std::string& message, const std::string& token, std::string_view text, int line);

}  // namespace moonshard
