// Quoted: a text as a Lua string literal in double quotes. Quotes, backslashes, line ends and the characters that
// Visible escapes (visible.h) are written as Lua escapes, so that Lua reads the same bytes back. (JSON has other
// escapes: JsonQuoted in json.h.)
#pragma once

#include <string>
#include <string_view>

namespace moonshard {

std::string Quoted(std::string_view text);
// Returns the text as a Python string literal, with escapes of the form \u202e. A byte that is not UTF-8 becomes the
// surrogate that Python's error handler surrogateescape (PEP 383) uses for it.
std::string PythonQuoted(std::string_view text);

}  // namespace moonshard
