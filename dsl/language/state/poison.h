// Poison: the value that a builtin returns after it reported an error, so that the evaluation continues. Operations on
// poison yield poison (indexing, calling, arithmetic, concatenation) or false (comparison), and a builtin with a
// poisoned argument reports nothing: one mistake, one diagnostic.
#pragma once

#include <string_view>

struct lua_State;

namespace moonshard {

// The type name of poison in Lua's own messages ("number expected, got unknown value"): such an error follows from one
// that was already reported.
inline constexpr std::string_view kPoisonName = "unknown value";

// Pushes poison. Returns 1, so that a C function can end with it.
int PushPoison(lua_State* L);
bool IsPoison(lua_State* L, int index);
// Whether any argument of the running C function is poison.
bool AnyPoison(lua_State* L);

}  // namespace moonshard
