// Poison: what a word answers after it reported an error, so that the script goes on. Whatever is done with poison
// yields poison (indexing, calling, arithmetic, joining) or false (comparing), and words that are given it stay silent:
// one mistake, one diagnostic.
#pragma once

#include <string_view>

struct lua_State;

namespace moonshard {

// How Lua's own messages name it ("attempt to compare number with unknown value"): such an error follows from one that
// was reported.
inline constexpr std::string_view kPoisonName = "unknown value";

// Leaves poison on top of the stack. Returns 1, so that a C function can end with it.
int PushPoison(lua_State* L);
bool IsPoison(lua_State* L, int index);
// Whether any argument of the running C function is poison.
bool AnyPoison(lua_State* L);

}  // namespace moonshard
