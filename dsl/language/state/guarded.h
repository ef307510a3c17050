// Guarded<F>: the one trampoline between Lua and C++. Every C function that Lua can call is registered as
// &Guarded<&F>, F being `int F(lua_State*)`. A C++ exception that leaves F is kept and becomes a Lua error, and
// ScriptState::Run throws it again on the other side; Lua's own throw (not a std::exception) passes untouched.
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
