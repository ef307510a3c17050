// Quoted: a text as a literal between double quotes, with quotes, backslashes and line ends escaped: what Lua's %q writes,
// and Python reads too. (JSON escapes more: JsonQuoted in json.h.)
#pragma once

#include <string>
#include <string_view>

namespace moonshard {

std::string Quoted(std::string_view text);

}  // namespace moonshard
