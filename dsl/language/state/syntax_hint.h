// SyntaxHint: the probable intention of a text that is not valid Lua. Lua names the token at which parsing failed; the
// usual mistakes are habits of other languages, an unclosed bracket, and typographic quotes.
#pragma once

#include <string>
#include <string_view>

namespace moonshard {

struct SyntaxHint {
  std::string help;
  int line = 0;  // a second line to show, as that of an unclosed bracket; 0: none
};

// `message`: Lua's, without the chunk name and line number in front; `token`: the token that it names; `line` (from 1):
// where that is in `text`. `help` is empty if no hint applies.
SyntaxHint HintFor(const std::string& message, const std::string& token, std::string_view text, int line);

}  // namespace moonshard
