// Lua's headers, with every function renamed to the function of moonshard's private copy of Lua (private_lua.cmake).
#pragma once

#include <moonshard_lua_names.h>  // must precede lua.hpp

#include <lua.hpp>
