// Quoted: a text as a literal of Lua between double quotes, with quotes, backslashes, line ends and what Visible
// escapes (visible.h) as Lua's escapes: what it reads is the text, byte by byte. (JSON escapes otherwise: JsonQuoted in
// json.h.)
#pragma once

#include <string>
#include <string_view>

namespace moonshard {

std::string Quoted(std::string_view text);
// The same for Python: \u202e; a byte that is not UTF-8 is the surrogate by which Python's error handler
// surrogateescape (PEP 383) stands for it.
std::string PythonQuoted(std::string_view text);

}  // namespace moonshard
