#include "host_lua.h"

#include <cstring>
#include <string>

#include <lua.hpp>

namespace host {

bool HostLuaWorks() {
  lua_State* state = luaL_newstate();
  luaL_openlibs(state);
  const bool fails = luaL_dostring(state, "error('host error')") != LUA_OK;
  const bool says_why = fails && std::strstr(lua_tostring(state, -1), "host error") != nullptr;
  // What a plan's sandbox does not have: this is not moonshard's state.
  const bool returns = luaL_dostring(state, "return #os.date() > 0 and string.rep('x', 21 * 2):len()") == LUA_OK;
  const bool right = returns && lua_tointeger(state, -1) == 42;
  lua_close(state);
  return says_why && right;
}

}  // namespace host
