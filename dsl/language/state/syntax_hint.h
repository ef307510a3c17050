// Syntax hint: what a text that Lua refuses was probably meant to say. Lua names the word at which it gave up; the mistake
// is mostly one of a few: habits of other languages, a bracket that is not closed, quotes of a word processor.
#pragma once

#include <string>
#include <string_view>

namespace moonshard {

struct SyntaxHint {
  std::string help;
  int line = 0;  // another line that takes part; 0: none
};

// `message` as Lua has it, without place; `token` is the word that it names; `line` (from 1) is where in `text`. Nothing
// where the mistake is none of those.
SyntaxHint HintFor(const std::string& message, const std::string& token, std::string_view text, int line);

}  // namespace moonshard
