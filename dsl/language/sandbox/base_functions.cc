// The base functions that a plan may use, with two differences from Lua's own. Nothing shows an address: tostring of a
// table is "table", since an address would differ between ranks and runs, and a plan could depend on it. And a value
// that stands in for a reported error (poison.h) passes through tonumber, and ends the script in error(), so that one
// mistake does not become several.
// pcall, load, setmetatable and the like are absent: the first could catch the error of a limit, the others could
// replace what the language relies on.
#include <cmath>
#include <string>

#include "dsl/language/sandbox/environment.h"
#include "dsl/language/state/poison.h"

namespace moonshard {
namespace {

int Assert(lua_State* L) {
  if (lua_toboolean(L, 1) != 0) return lua_gettop(L);
  luaL_checkany(L, 1);
  if (lua_isnoneornil(L, 2)) return luaL_error(L, "assertion failed");
  lua_settop(L, 2);
  return lua_error(L);
}

// The message is what the diagnostic shows, so the level of Lua's second argument, which only adds a place to a text,
// has no effect: a diagnostic has its place already. A message that is poison is replaced, since the poison itself is
// reported.
int Error(lua_State* L) {
  if (AnyPoison(L)) {
    lua_pushfstring(L, "error with an %s", kPoisonName.data());
    return lua_error(L);
  }
  lua_settop(L, 1);
  return lua_error(L);
}

// Lua's own semantics, written anew because the library's function comes with the whole base library. Nothing is
// copied: the results are the topmost arguments, where they already are.
int Select(lua_State* L) {
  const int count = lua_gettop(L);
  if (lua_type(L, 1) == LUA_TSTRING && std::string_view(lua_tostring(L, 1)) == "#") {
    lua_pushinteger(L, count - 1);
    return 1;
  }
  lua_Integer first = luaL_checkinteger(L, 1);
  if (first < 0) first = count + first;
  luaL_argcheck(L, first >= 1, 1, "index out of range");
  return first >= count ? 0 : count - static_cast<int>(first);
}

// lua_stringtonumber accepts what Lua's numerals are, hexadecimal ones too, and returns the size with the final zero:
// equal only where the whole text was read, so a text with a zero byte within is none.
int ToNumber(lua_State* L) {
  luaL_checkany(L, 1);
  if (AnyPoison(L)) return PushPoison(L);
  luaL_argcheck(L, lua_isnoneornil(L, 2), 2, "only base ten is supported");
  if (lua_type(L, 1) == LUA_TNUMBER) {
    lua_settop(L, 1);
    return 1;
  }
  size_t size = 0;
  const char* text = lua_type(L, 1) == LUA_TSTRING ? lua_tolstring(L, 1, &size) : nullptr;
  ScriptState::From(L).Charge(size / 16);
  if (text == nullptr || lua_stringtonumber(L, text) != size + 1) lua_pushnil(L);
  return 1;
}

int ToString(lua_State* L) {
  luaL_checkany(L, 1);
  PushText(L, 1);
  return 1;
}

int Type(lua_State* L) {
  luaL_checkany(L, 1);
  if (lua_type(L, 1) == LUA_TUSERDATA && luaL_getmetafield(L, 1, "__name") == LUA_TSTRING) return 1;
  lua_pushstring(L, luaL_typename(L, 1));
  return 1;
}

}  // namespace

// A metatable's __tostring and __name are those of the language's own types: a script cannot set either.
void PushText(lua_State* L, int index) {
  switch (lua_type(L, index)) {
    case LUA_TTABLE:
    case LUA_TFUNCTION:
    case LUA_TLIGHTUSERDATA:
    case LUA_TTHREAD:
      lua_pushstring(L, luaL_typename(L, index));  // luaL_tolstring would show an address
      return;
    case LUA_TUSERDATA:
      if (luaL_getmetafield(L, index, "__tostring") == LUA_TNIL) {
        if (luaL_getmetafield(L, index, "__name") == LUA_TNIL) lua_pushliteral(L, "userdata");
        return;
      }
      lua_pop(L, 1);
      [[fallthrough]];
    default: luaL_tolstring(L, index, nullptr);
  }
}

void PushBaseFunctions(lua_State* L) {
  lua_newtable(L);
  AddFunctions(L, {{"assert", &Guarded<&Assert>},
                   {"error", &Guarded<&Error>},
                   {"ipairs", &Guarded<&Ipairs>},
                   {"next", &Guarded<&Next>},
                   {"pairs", &Guarded<&Pairs>},
                   {"select", &Guarded<&Select>},
                   {"tonumber", &Guarded<&ToNumber>},
                   {"tostring", &Guarded<&ToString>},
                   {"type", &Guarded<&Type>}});
}

void PushMathFunctions(lua_State* L) {
  // Lua's own: their work does not depend on sizes.
  lua_newtable(L);  // [allowed]
  luaopen_math(L);  // [allowed, math]
  for (const char* name :
       {"abs", "ceil", "floor", "fmod", "huge", "max", "maxinteger", "min", "mininteger", "tointeger", "type"}) {
    lua_getfield(L, -1, name);
    lua_setfield(L, -3, name);
  }
  lua_pop(L, 1);
}

}  // namespace moonshard
