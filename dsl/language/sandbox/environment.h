// Environment: the names of a plan, an allow list, read-only; reading any other name is an error with the nearest
// match.
//
//   base     assert error ipairs next pairs require (added by eval/) select tonumber tostring type
//   string   byte char find format gmatch gsub len lower match rep reverse sub upper
//   table    concat insert pack remove sort unpack
//   math     abs ceil floor fmod huge max maxinteger min mininteger tointeger type
//
// Omitted, because a script could hang in them, keep values alive, observe what differs between ranks, or reach
// outside: load loadfile dofile loadstring pcall xpcall coroutine setmetatable getmetatable rawget rawset rawequal
// rawlen collectgarbage print warn os io debug package math.random string.dump string.pack string.unpack utf8 _G.
// The rest differs from Lua where it must: pairs and next iterate in sorted order, tostring shows no address, work that
// depends on sizes is charged to the budget of steps, and table.sort compares strings by bytes.
#pragma once

#include <string_view>

#include <string>
#include <vector>

#include "dsl/language/state/guarded.h"

namespace moonshard {

// What a read of a missing key is reported as. A write is kReadOnly for every kind.
enum class ReadOnlyKind : int {
  kNames,    // the environment itself: kUnknownName
  kLibrary,  // string, table, math, a stdlib module: kUnknownKey
  kOptions,  // the result of options{}: kUnknownOption
};

// Makes the environment with everything above, kept in the registry.
void OpenEnvironment(lua_State* L);
// The environment, for LoadChunk. Leaves it on top of the stack.
void PushEnvironment(lua_State* L);
// The environment for the lines of a session: as above, but names can be assigned, which later lines see. The first
// call creates it. An assignment to a builtin is an error; a `local` of an earlier line may shadow one.
void PushSessionEnvironment(lua_State* L);
// The table of the session's own names, for the host alone. Leaves it on top of the stack.
void PushSessionNames(lua_State* L);
// Adds a name to the environment; takes the value on top of the stack.
void SetName(lua_State* L, const char* name);
// A deprecated name for `replacement`: reading it is reported (kDeprecatedName) with `help` and returns the value of
// the replacement.
void SetDeprecated(lua_State* L, const char* name, const char* replacement, const char* help);
// Replaces the table on top of the stack by a read-only view of it. `label` is how messages call it.
void MakeReadOnly(lua_State* L, ReadOnlyKind kind, const char* label);

struct NamedFunction {
  const char* name;
  lua_CFunction function;
};
// Adds functions to the table on top of the stack.
void AddFunctions(lua_State* L, const std::vector<NamedFunction>& functions);

// Sorted keys of the table at `index`, as Lua array on top of the stack: numbers, then strings bytewise, then booleans.
// Other keys have no order that is the same on every rank: raises a Lua error.
void PushSortedKeys(lua_State* L, int index);

// The libraries: each leaves a table of its functions on top of the stack (base functions are names of their own).
void PushBaseFunctions(lua_State* L);
void PushStringFunctions(lua_State* L);
void PushTableFunctions(lua_State* L);
void PushMathFunctions(lua_State* L);
int Format(lua_State* L);  // string.format
int Pairs(lua_State* L);
int Next(lua_State* L);
int Ipairs(lua_State* L);

// Text of the value at `index` as plans see it: no addresses. Leaves it on top of the stack.
void PushText(lua_State* L, int index);

// Foreign names: names of other languages and libraries that occur in plans by mistake, and their equivalents.
// The help for a name: "write false"; "" for a name without an entry.
std::string HelpForForeignName(std::string_view name);

}  // namespace moonshard
