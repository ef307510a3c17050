// The host's own Lua, the plain C library.
#pragma once

namespace host {

// Runs a script that raises an error through C frames and one that returns a number; false where either went wrong, or
// where the library is not the plain one.
bool HostLuaWorks();

}  // namespace host
