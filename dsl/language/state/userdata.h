// Userdata<T>: a C++ value as an immutable Lua value with a type name. The memory of the value counts towards the limit
// of the ScriptState, and the destructor runs when Lua collects the value, at the latest with the state. The caller of
// Register adds metamethods such as == and tostring.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

#include "dsl/language/state/guarded.h"

namespace moonshard {

template <class T>
class Userdata {
 public:
  // Creates the metatable and pushes it, so that the caller can add metamethods. `name` is the result of type().
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

  // Pushes the value. `held` is the approximate number of bytes that the value holds on the heap. Raises a Lua error if
  // the memory limit would be exceeded.
  static const T& Push(lua_State* L, T value, size_t held = 0) {
    static_assert(std::is_nothrow_move_constructible_v<T>);
    constexpr size_t kOverhead = 32;  // bytes of overhead of one allocation
    held += sizeof(Box) + (held > 0 ? 2 * kOverhead : kOverhead);
    ScriptState& state = ScriptState::From(L);
    ScriptState::Reserved memory(state, held);
    Box** const slot = static_cast<Box**>(lua_newuserdatauv(L, sizeof(Box*), 0));
    auto box = std::make_unique<Box>(std::move(value), held);
    *slot = box.get();
    state.Hold(std::move(box));
    lua_rawgetp(L, LUA_REGISTRYINDEX, &kKey);
    lua_setmetatable(L, -2);
    memory.Keep();  // Collect subtracts the memory
    return (*slot)->value;
  }

  // Returns the value at `index` and leaves a moved-from value in Lua. Only for use after the last script code has run.
  static T Take(lua_State* L, int index) { return std::move(At(L, index)->value); }

  // Returns the value at `index`; nullptr if the value has another type. Lua owns the value, which is valid as long as
  // Lua can reach it.
  static const T* To(lua_State* L, int index) {
    if (lua_type(L, index) != LUA_TUSERDATA || lua_getmetatable(L, index) == 0) return nullptr;
    lua_rawgetp(L, LUA_REGISTRYINDEX, &kKey);
    const bool same = lua_rawequal(L, -1, -2) != 0;
    lua_pop(L, 2);
    return same ? &At(L, index)->value : nullptr;
  }

 private:
  struct Box final : ScriptState::HeldValue {
    Box(T v, size_t h) : value(std::move(v)), held(h) {}
    T value;
    size_t held;
  };

  static Box* At(lua_State* L, int index) { return *static_cast<Box**>(lua_touserdata(L, index)); }

  static int Collect(lua_State* L) {
    Box* const box = At(L, 1);
    ScriptState::From(L).GiveMemory(box->held);
    ScriptState::From(L).End(box);
    return 0;
  }

  static constexpr char kKey = 0;  // its address is the registry key
};

}  // namespace moonshard
