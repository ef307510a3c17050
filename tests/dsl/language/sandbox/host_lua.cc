#include "tests/dsl/language/sandbox/host_lua.h"

#include <lua.hpp>

namespace moonshard {

std::string RunHostLua(const std::string& text) {
  lua_State* L = luaL_newstate();
  luaL_openlibs(L);
  const bool good = luaL_dostring(L, text.c_str()) == LUA_OK;
  size_t size = 0;
  const char* answer = lua_tolstring(L, -1, &size);
  std::string out = (good ? "" : "error: ") + (answer != nullptr ? std::string(answer, size) : "no text");
  lua_close(L);
  return out;
}

}  // namespace moonshard
