// SyntaxHint: the probable intention of a text that is not valid Lua. Lua names the token at which parsing failed; the
// usual mistakes are habits of other languages, an unclosed bracket, and typographic quotes.
#pragma once

#include <string>
#include <string_view>

namespace moonshard {

struct SyntaxHint {
  std::string help;
  int line = 0;  // another line that takes part; 0: none
};

// `message` of Lua, without its place; `token` is the token that it names; `line` (from 1) its line in `text`. Empty
// for other mistakes.
SyntaxHint HintFor(const std::string& message, const std::string& token, std::string_view text, int line);

}  // namespace moonshard
