// Guarded<F>: the wrapper of every C function that Lua calls. A function `int F(lua_State*)` is registered as
// &Guarded<&F>. If a C++ exception leaves F, Guarded stores the exception in the ScriptState and raises a Lua error;
// ScriptState::Run rethrows the exception. Lua's own exceptions (not a std::exception) pass through unchanged.
#pragma once

#include <exception>

#include "dsl/language/state/lua.h"
#include "dsl/language/state/script_state.h"

namespace moonshard {

using ScriptFunction = int (*)(lua_State*);

template <ScriptFunction F>
int Guarded(lua_State* L) {
  try {
    return F(L);
  } catch (const std::exception&) {
    ScriptState::From(L).KeepException(std::current_exception());
  }
  return luaL_error(L, "a C++ exception");
}

}  // namespace moonshard
