// Quoted: a text as a literal between double quotes, with quotes, backslashes, line ends and other control bytes
// escaped: Lua and Python read it. (JSON escapes otherwise: JsonQuoted in json.h.)
#pragma once

#include <string>
#include <string_view>

namespace moonshard {

std::string Quoted(std::string_view text);
// The text for a comment that ends with its line: control bytes escaped, line ends too.
std::string OneLine(std::string_view text);

}  // namespace moonshard
