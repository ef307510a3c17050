// LoadChunk: plan text -> a Lua function, text only.
#pragma once

#include <string>
#include <string_view>

struct lua_State;

namespace moonshard {

// Leaves the chunk's function on top of the stack, its environment being the value on top of the stack before (which is
// taken). Reports and leaves nothing, returning false, for a text that is too long, starts with a byte order mark or an
// escape byte (bytecode), holds a NUL, or is not valid Lua (kSyntax, with the line that probably lacks a comma).
// `internal`: a text of moonshard's own, never blamed.
bool LoadChunk(lua_State* L, std::string_view text, const std::string& name, bool internal);

}  // namespace moonshard
