// Userdata<T>: a C++ value as a Lua value: immutable, with ==, tostring and a name for messages; its memory counts
// towards the limit and its destructor runs when Lua collects it.
#pragma once

#include <new>
#include <type_traits>
#include <utility>

#include "dsl/state/guarded.h"

namespace moonshard {

template <class T>
class Userdata {
 public:
  // Makes the metatable; `name` is what type() answers. Leaves it on top of the stack for further metamethods.
  static void Register(lua_State* L, const char* name) {
    lua_createtable(L, 0, 6);  // [meta]
    lua_pushstring(L, name);
    lua_setfield(L, -2, "__name");
    lua_pushboolean(L, 0);
    lua_setfield(L, -2, "__metatable");
    lua_pushcfunction(L, &Guarded<&Userdata::Collect>);
    lua_setfield(L, -2, "__gc");
    lua_pushvalue(L, -1);
    lua_rawsetp(L, LUA_REGISTRYINDEX, &kKey);
  }

  // Leaves the value on top of the stack. `held` is the memory it holds outside of itself, about.
  static const T& Push(lua_State* L, T value, size_t held = 0) {
    static_assert(std::is_nothrow_move_constructible_v<T> && alignof(T) <= alignof(double));
    constexpr size_t kOverhead = 32;  // of the allocations, which are few
    if (held > 0) held += kOverhead;
    ScriptState::From(L).TakeMemory(held);
    Box* box = nullptr;
    try {
      box = static_cast<Box*>(lua_newuserdatauv(L, sizeof(Box), 0));
    } catch (...) {  // Lua's throw: out of memory
      ScriptState::From(L).GiveMemory(held);
      throw;
    }
    new (box) Box{std::move(value), held};
    lua_rawgetp(L, LUA_REGISTRYINDEX, &kKey);
    lua_setmetatable(L, -2);
    return box->value;
  }

  // Moves the value at `index` out, which is left as a moved-from one: where nothing in the script runs afterwards.
  static T Take(lua_State* L, int index) { return std::move(static_cast<Box*>(lua_touserdata(L, index))->value); }

  // The value at `index`; nullptr where something else is there. It lives as long as Lua can reach it.
  static const T* To(lua_State* L, int index) {
    if (lua_type(L, index) != LUA_TUSERDATA || lua_getmetatable(L, index) == 0) return nullptr;
    lua_rawgetp(L, LUA_REGISTRYINDEX, &kKey);
    const bool same = lua_rawequal(L, -1, -2) != 0;
    lua_pop(L, 2);
    return same ? &static_cast<Box*>(lua_touserdata(L, index))->value : nullptr;
  }

 private:
  struct Box {
    T value;
    size_t held;
  };

  static int Collect(lua_State* L) {
    Box* box = static_cast<Box*>(lua_touserdata(L, 1));
    ScriptState::From(L).GiveMemory(box->held);
    box->~Box();
    return 0;
  }

  static constexpr char kKey = 0;  // its address is the registry key
};

}  // namespace moonshard
