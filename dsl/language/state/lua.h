// Lua's headers, with every call redirected to moonshard's private copy of Lua (private_lua.cmake).
#pragma once

#include <moonshard_lua_names.h>  // must precede lua.hpp

#include <lua.hpp>
