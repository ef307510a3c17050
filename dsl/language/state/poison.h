// Poison: the value that a builtin returns after it has reported an error, so that the evaluation continues. Operations
// on poison return poison (indexing, calling, arithmetic, concatenation) or false (comparison), and a builtin with a
// poison argument reports nothing, so that one mistake gives one diagnostic.
#pragma once

#include <string_view>

struct lua_State;

namespace moonshard {

// The type name of poison in Lua's own messages ("number expected, got unknown value"). Such a message is dropped,
// because the cause has been reported already.
inline constexpr std::string_view kPoisonName = "unknown value";

// Pushes poison and returns 1, the number of results of a C function that returns poison.
int PushPoison(lua_State* L);
bool IsPoison(lua_State* L, int index);
// Returns whether any argument of the running C function is poison.
bool AnyPoison(lua_State* L);

}  // namespace moonshard
