// pairs, next and ipairs in an order that is the same on every rank. Lua iterates in hash order, and its hash of a
// string depends on a seed that includes an address: two ranks would see the entries of one table in different orders
// and make different plans. pairs sorts the keys once, when it is called; a key that the loop removes is skipped, and
// one that it adds is not visited.
#include <algorithm>
#include <string>
#include <vector>

#include "dsl/language/sandbox/environment.h"
#include "dsl/language/state/poison.h"

namespace moonshard {
namespace {

// A key as plain data; in the order of PushSortedKeys: numbers by value, then strings by bytes, then false before
// true. It is a total order over the keys that a table can have: 1 and 1.0 are one key in Lua, NaN is none, and
// integers beyond 2^53 are compared as integers, where a comparison of doubles would call neighbours equal.
struct Key {
  int group = 0;  // 0 number, 1 string, 2 boolean
  bool integer = false;
  lua_Integer full = 0;
  lua_Number number = 0;
  std::string_view text;  // lives in the table's own string

  bool operator<(const Key& other) const {
    if (group != other.group) return group < other.group;
    if (group == 1) return text < other.text;
    if (integer && other.integer) return full < other.full;
    return number < other.number;
  }
};

// Tables, functions and userdata as keys are refused and not sorted by address: their order would differ between
// ranks, and with it the order of rules. Neither lua_tolstring nor lua_tonumber converts here (the type is known),
// which would confuse lua_next.
Key KeyAt(lua_State* L, int index) {
  Key key;
  switch (lua_type(L, index)) {
    case LUA_TNUMBER:
      key.integer = lua_isinteger(L, index) != 0;
      key.full = lua_tointeger(L, index);
      key.number = lua_tonumber(L, index);
      return key;
    case LUA_TSTRING: {
      size_t size = 0;
      const char* text = lua_tolstring(L, index, &size);
      key.group = 1;
      key.text = {text, size};
      return key;
    }
    case LUA_TBOOLEAN:
      key.group = 2;
      key.full = lua_toboolean(L, index);
      key.integer = true;
      return key;
    default:
      luaL_error(L, "a table has a key of type %s; such keys have no order that is the same on every rank",
                 luaL_typename(L, index));
      return key;
  }
}

void PushKey(lua_State* L, const Key& key) {
  if (key.group == 1) {
    lua_pushlstring(L, key.text.data(), key.text.size());
  } else if (key.group == 2) {
    lua_pushboolean(L, static_cast<int>(key.full));
  } else if (key.integer) {
    lua_pushinteger(L, key.full);
  } else {
    lua_pushnumber(L, key.number);
  }
}

// Upvalues: 1 the table, 2 its sorted keys, 3 how many were given. The iterator has its place in an upvalue, where
// Lua's next has only the last key: that would have to be searched in the sorted list at each step. A value is read
// when its turn comes, with metamethods, so that the loop sees assignments to later keys.
int NextPair(lua_State* L) {
  while (true) {
    const lua_Integer given = lua_tointeger(L, lua_upvalueindex(3)) + 1;
    lua_pushinteger(L, given);
    lua_replace(L, lua_upvalueindex(3));
    if (lua_rawgeti(L, lua_upvalueindex(2), given) == LUA_TNIL) return 1;
    lua_pushvalue(L, -1);  // [key, key]
    if (lua_gettable(L, lua_upvalueindex(1)) != LUA_TNIL) return 2;
    lua_pop(L, 2);  // removed while the loop ran
  }
}

// A script may call the iterator itself, with the largest integer: the sum wraps around, as in Lua.
int NextIndex(lua_State* L) {
  const auto i = static_cast<lua_Integer>(static_cast<lua_Unsigned>(luaL_checkinteger(L, 2)) + 1);
  lua_pushinteger(L, i);
  return lua_geti(L, 1, i) == LUA_TNIL ? 1 : 2;
}

int NoMore(lua_State*) { return 0; }

}  // namespace

// Keys are read in one pass and sorted as plain data. A script cannot run in between, so views into the table's own
// strings stay valid. Reading costs what comparing will: the size of text keys is charged with them.
void PushSortedKeys(lua_State* L, int index) {
  index = lua_absindex(L, index);
  ScriptState& state = ScriptState::From(L);
  std::vector<Key> keys;
  for (lua_pushnil(L); lua_next(L, index) != 0; lua_pop(L, 1)) {
    keys.push_back(KeyAt(L, -2));
    state.Charge(4 + keys.back().text.size() / 16);
  }
  std::ranges::sort(keys, [](const Key& a, const Key& b) { return a < b; });
  lua_createtable(L, static_cast<int>(keys.size()), 0);
  for (size_t i = 0; i < keys.size(); ++i) {
    PushKey(L, keys[i]);
    lua_rawseti(L, -2, static_cast<lua_Integer>(i + 1));
  }
}

// O(n log n) once, and O(1) a step. A view has __pairs, which leads to the table behind it. Over poison the loop runs
// zero times: what made it is reported already.
int Pairs(lua_State* L) {
  if (IsPoison(L, 1)) {
    lua_pushcfunction(L, &Guarded<&NoMore>);
    return 1;
  }
  if (luaL_getmetafield(L, 1, "__pairs") != LUA_TNIL) {
    lua_pushvalue(L, 1);
    lua_call(L, 1, 3);
    return 3;
  }
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_pushvalue(L, 1);
  PushSortedKeys(L, 1);
  lua_pushinteger(L, 0);
  lua_pushcclosure(L, &Guarded<&NextPair>, 3);
  return 1;
}

// next(t, key) has no iterator in which to keep sorted keys, so every call searches for the smallest key after `key`:
// quadratic for a whole traversal, which is charged. It is meant for next(t) == nil, which is one pass; a loop takes
// pairs, which sorts once.
int Next(lua_State* L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_settop(L, 2);
  ScriptState& state = ScriptState::From(L);
  const bool first = lua_isnil(L, 2);
  const Key after = first ? Key{} : KeyAt(L, 2);
  bool found = false;
  Key best;
  for (lua_pushnil(L); lua_next(L, 1) != 0; lua_pop(L, 1)) {
    const Key key = KeyAt(L, -2);
    state.Charge(2 + key.text.size() / 16);
    if ((first || after < key) && (!found || key < best)) {
      best = key;
      found = true;
    }
  }
  if (!found) {
    lua_pushnil(L);
    return 1;
  }
  PushKey(L, best);
  lua_pushvalue(L, -1);
  lua_gettable(L, 1);
  return 2;
}

int Ipairs(lua_State* L) {
  if (IsPoison(L, 1)) {
    lua_pushcfunction(L, &Guarded<&NoMore>);
    return 1;
  }
  luaL_checkany(L, 1);
  if (lua_type(L, 1) != LUA_TTABLE && luaL_getmetafield(L, 1, "__index") == LUA_TNIL) luaL_checktype(L, 1, LUA_TTABLE);
  lua_pushcfunction(L, &Guarded<&NextIndex>);
  lua_pushvalue(L, 1);
  lua_pushinteger(L, 0);
  return 3;
}

}  // namespace moonshard
