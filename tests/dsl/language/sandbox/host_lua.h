// Lua as a host program has it: the plain C library with its own names.
#pragma once

#include <string>

namespace moonshard {

// The text that the chunk returns, with all of Lua's standard libraries; "error: ..." where it raises.
std::string RunHostLua(const std::string& text);

}  // namespace moonshard
