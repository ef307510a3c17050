// The only way to Lua's headers: it makes every call go to moonshard's private copy (private_lua.cmake).
#pragma once

#include <moonshard_lua_names.h>  // must stand before lua.hpp

#include <lua.hpp>
