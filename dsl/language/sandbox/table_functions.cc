// The table library, with metamethods respected (lua_geti, lua_seti), so that a write to a read-only view is refused as
// everywhere. Functions whose work depends on the length of a list charge it; what they put on the stack or into a text
// is bounded.
#include <algorithm>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "dsl/language/sandbox/environment.h"
#include "dsl/language/state/poison.h"

namespace moonshard {
namespace {

constexpr size_t kMostConcatenated = size_t{1} << 20;
constexpr lua_Integer kMostValues = 200;  // that one call may put on the stack

// Length of the table in argument 1.
lua_Integer LengthOfFirst(lua_State* L) {
  if (lua_type(L, 1) != LUA_TTABLE && luaL_getmetafield(L, 1, "__len") == LUA_TNIL) luaL_checktype(L, 1, LUA_TTABLE);
  return luaL_len(L, 1);
}

// Moving up the rest of a list is a loop in C, whose length no hook sees: it is charged before it runs. The new length
// is computed without a sign, as in Lua: a table with keys at powers of two and at the largest integer has a length of
// 2^63 - 1, and the loop for the wrapped length is empty.
int Insert(lua_State* L) {
  if (IsPoison(L, 1)) return 0;
  const lua_Unsigned behind = static_cast<lua_Unsigned>(LengthOfFirst(L)) + 1;
  const auto end = static_cast<lua_Integer>(behind);
  if (lua_gettop(L) == 2) {
    lua_seti(L, 1, end);
    return 0;
  }
  if (lua_gettop(L) != 3) return luaL_error(L, "wrong number of arguments to 'insert'");
  const lua_Integer at = luaL_checkinteger(L, 2);
  luaL_argcheck(L, static_cast<lua_Unsigned>(at) - 1 < behind, 2, "position out of bounds");
  if (end > at) ScriptState::From(L).Charge(static_cast<size_t>(end - at));
  for (lua_Integer i = end; i > at; --i) {
    lua_geti(L, 1, i - 1);
    lua_seti(L, 1, i);
  }
  lua_seti(L, 1, at);
  return 0;
}

// The place behind the last is allowed, as in Lua, and so is the length itself where it is 0: t[0] is removed then.
int Remove(lua_State* L) {
  if (AnyPoison(L)) return PushPoison(L);
  const lua_Integer length = LengthOfFirst(L);
  lua_Integer at = luaL_optinteger(L, 2, length);
  luaL_argcheck(L, at == length || static_cast<lua_Unsigned>(at) - 1 <= static_cast<lua_Unsigned>(length), 2,
                "position out of bounds");
  if (length > at) ScriptState::From(L).Charge(static_cast<size_t>(length - at));
  lua_geti(L, 1, at);
  for (; at < length; ++at) {
    lua_geti(L, 1, at + 1);
    lua_seti(L, 1, at);
  }
  lua_pushnil(L);
  lua_seti(L, 1, at);
  return 1;
}

// Each element is charged, and the size of the text is bounded while it grows and not when it is done. The range is the
// script's own and may be far longer than the list: it ends at the first element that is no text, which is an error.
// The last element is left to the condition within the loop, since `i <= last` never ends for the largest integer.
int Concat(lua_State* L) {
  if (AnyPoison(L)) return PushPoison(L);
  const lua_Integer length = LengthOfFirst(L);
  size_t separator_size = 0;
  const char* separator = luaL_optlstring(L, 2, "", &separator_size);
  const lua_Integer first = luaL_optinteger(L, 3, 1);
  const lua_Integer last = luaL_optinteger(L, 4, length);
  std::string out;
  for (lua_Integer i = first; first <= last; ++i) {
    ScriptState::From(L).Charge(1);
    lua_geti(L, 1, i);
    // One unknown value makes the text unknown: it is returned as the result, without an error of its own.
    if (IsPoison(L, -1)) return 1;
    if (lua_isstring(L, -1) == 0) {
      return luaL_error(L, "invalid value (a %s) at index %I in table for 'concat'", luaL_typename(L, -1),
                        static_cast<LUAI_UACINT>(i));
    }
    if (i > first) out.append(separator, separator_size);
    size_t size = 0;
    const char* text = lua_tolstring(L, -1, &size);
    out.append(text, size);
    lua_pop(L, 1);
    if (out.size() > kMostConcatenated) return luaL_error(L, "table.concat: the result is longer than 1 MiB");
    if (i == last) break;
  }
  ScriptState::From(L).Charge(out.size() / 16);
  lua_pushlstring(L, out.data(), out.size());
  return 1;
}

int Pack(lua_State* L) {
  const int count = lua_gettop(L);
  lua_createtable(L, count, 1);
  lua_insert(L, 1);
  for (int i = count; i >= 1; --i) lua_rawseti(L, 1, i);
  lua_pushinteger(L, count);
  lua_setfield(L, 1, "n");
  return 1;
}

// At most 200 results: the loop runs in C, where no hook interrupts it, and its bounds come from the script.
int Unpack(lua_State* L) {
  if (AnyPoison(L)) return PushPoison(L);
  const lua_Integer first = luaL_optinteger(L, 2, 1);
  const lua_Integer last = lua_isnoneornil(L, 3) ? LengthOfFirst(L) : luaL_checkinteger(L, 3);
  if (first > last) return 0;
  // Unsigned, because the difference of two integers may not fit one.
  const auto beyond = static_cast<lua_Unsigned>(last) - static_cast<lua_Unsigned>(first);
  if (beyond >= static_cast<lua_Unsigned>(kMostValues)) return luaL_error(L, "too many results to unpack");
  luaL_checkstack(L, static_cast<int>(kMostValues), "too many results to unpack");
  for (lua_Unsigned i = 0; i <= beyond; ++i) {
    lua_geti(L, 1, static_cast<lua_Integer>(static_cast<lua_Unsigned>(first) + i));
  }
  return static_cast<int>(beyond) + 1;
}

// Whether value `a` of the copy at index 3 precedes `b`: by the function in argument 2, else numbers by value and
// strings by their bytes (Lua's own < depends on the locale). Texts are charged by the bytes that a comparison may
// read: equal texts of megabytes, which need not be one object, are read to their end each time.
bool Before(lua_State* L, lua_Integer a, lua_Integer b) {
  ScriptState::From(L).Charge(4);
  if (!lua_isnil(L, 2)) lua_pushvalue(L, 2);
  lua_rawgeti(L, 3, a);
  lua_rawgeti(L, 3, b);
  bool before = false;
  if (!lua_isnil(L, 2)) {
    lua_call(L, 2, 1);
    before = lua_toboolean(L, -1) != 0;
    lua_pop(L, 1);
    return before;
  }
  if (lua_type(L, -1) == LUA_TSTRING && lua_type(L, -2) == LUA_TSTRING) {
    size_t size_a = 0;
    size_t size_b = 0;
    const char* text_a = lua_tolstring(L, -2, &size_a);
    const char* text_b = lua_tolstring(L, -1, &size_b);
    ScriptState::From(L).Charge(std::min(size_a, size_b) / 16);  // they may differ in the last byte alone
    before = std::string_view(text_a, size_a) < std::string_view(text_b, size_b);
  } else {
    before = lua_compare(L, -2, -1, LUA_OPLT) != 0;
  }
  lua_pop(L, 2);
  return before;
}

// A merge sort, for three reasons: it is stable, so that the order of equal values is the same on every rank; it stays
// within bounds for a comparison function that is not an order, which std::sort does not; and it works on a copy, so
// that a comparison function that changes the table cannot invalidate it. Its memory counts towards the limit, and each
// comparison is charged to the budget of steps. The bound on the length is Lua's: a table with keys at powers of two
// may have a length of 2^60, whose size in bytes wraps around to 0.
int Sort(lua_State* L) {
  if (AnyPoison(L)) return 0;
  const lua_Integer length = LengthOfFirst(L);
  if (length < 2) return 0;
  luaL_argcheck(L, length < std::numeric_limits<int>::max(), 1, "array too big");
  if (!lua_isnoneornil(L, 2)) luaL_checktype(L, 2, LUA_TFUNCTION);
  lua_settop(L, 2);
  ScriptState::From(L).Charge(static_cast<size_t>(length));
  const ScriptState::Reserved memory(ScriptState::From(L), static_cast<size_t>(length) * 2 * sizeof(lua_Integer));
  lua_createtable(L, static_cast<int>(length), 0);  // [table, function, copy]
  std::vector<lua_Integer> order(static_cast<size_t>(length));
  for (lua_Integer i = 0; i < length; ++i) {
    order[static_cast<size_t>(i)] = i + 1;
    lua_geti(L, 1, i + 1);
    lua_rawseti(L, 3, i + 1);
  }
  std::vector<lua_Integer> merged(order.size());
  // Bottom up: runs of 1, 2, 4, ... are merged in pairs. The right run goes first only where its value precedes, so
  // equal values keep their order. Indices are moved and not values, which stay in the copy that Lua's collector sees.
  for (size_t width = 1; width < order.size(); width *= 2) {
    for (size_t begin = 0; begin < order.size(); begin += 2 * width) {
      const size_t middle = std::min(begin + width, order.size());
      const size_t end = std::min(begin + 2 * width, order.size());
      size_t left = begin;
      size_t right = middle;
      for (size_t i = begin; i < end; ++i) {
        const bool take_right = right < end && (left == middle || Before(L, order[right], order[left]));
        merged[i] = take_right ? order[right++] : order[left++];
      }
    }
    std::swap(order, merged);
  }
  for (size_t i = 0; i < order.size(); ++i) {
    lua_rawgeti(L, 3, order[i]);
    lua_seti(L, 1, static_cast<lua_Integer>(i + 1));
  }
  return 0;
}

}  // namespace

void PushTableFunctions(lua_State* L) {
  lua_newtable(L);
  AddFunctions(L, {{"concat", &Guarded<&Concat>},
                   {"insert", &Guarded<&Insert>},
                   {"pack", &Guarded<&Pack>},
                   {"remove", &Guarded<&Remove>},
                   {"sort", &Guarded<&Sort>},
                   {"unpack", &Guarded<&Unpack>}});
}

}  // namespace moonshard
