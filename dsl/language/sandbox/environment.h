// Environment: the read-only names of a plan, an allow list. A read of any other name is an error, whose help suggests
// the nearest match.
//
//   base     assert error ipairs next pairs require (added by eval/) select tonumber tostring type
//   string   byte char find format gmatch gsub len lower match rep reverse sub upper
//   table    concat insert pack remove sort unpack
//   math     abs ceil floor fmod huge max maxinteger min mininteger tointeger type
//
// A script could use other names of Lua to run without end, keep values alive, observe differences between ranks, or
// access the machine, so these names are omitted: load loadfile dofile loadstring pcall xpcall coroutine setmetatable
// getmetatable rawget rawset rawequal rawlen collectgarbage print warn os io debug package math.random string.dump
// string.pack string.unpack utf8 _G. The names above differ from Lua as follows: pairs and next iterate in sorted
// order, tostring shows no address, a function whose work grows with its arguments charges this work to the budget of
// steps, and table.sort is stable and compares strings by bytes.
#pragma once

#include <string_view>

#include <string>
#include <vector>

#include "dsl/language/state/guarded.h"

namespace moonshard {

// The kind of a read-only table. A read of a missing key reports the finding of the kind; a write reports kReadOnly for
// every kind.
enum class ReadOnlyKind : int {
  kNames,    // the environment itself: kUnknownName
  kLibrary,  // string, table, math, a stdlib module: kUnknownKey
  kOptions,  // the result of options{}: kUnknownOption
};

// Creates the environment with the names above, except require, and stores the environment in the registry.
void OpenEnvironment(lua_State* L);
// Pushes the environment, for LoadChunk.
void PushEnvironment(lua_State* L);
// Pushes the environment for the lines of a session: the names above, and the names that earlier lines have assigned.
// The first call creates the environment. An assignment to a builtin is an error; a `local` of an earlier line may
// shadow a builtin.
void PushSessionEnvironment(lua_State* L);
// Pushes the table of the names that the session has assigned. For C++ code only: a script cannot reach this table.
void PushSessionNames(lua_State* L);
// Pops the value on top of the stack and adds the value to the environment under `name`.
void SetName(lua_State* L, const char* name);
// Adds the deprecated name `name` for `replacement`: a read of `name` is reported (kDeprecatedName) with `help` and
// returns the value of `replacement`.
void SetDeprecated(lua_State* L, const char* name, const char* replacement, const char* help);
// Replaces the table on top of the stack by a read-only view of the table. `label` is the name of the view in messages.
void MakeReadOnly(lua_State* L, ReadOnlyKind kind, const char* label);

struct NamedFunction {
  const char* name;
  lua_CFunction function;
};
// Adds functions to the table on top of the stack.
void AddFunctions(lua_State* L, const std::vector<NamedFunction>& functions);

// Pushes a list of the keys of the table at `index`, sorted: numbers, then strings by bytes, then booleans. Raises a
// Lua error for a key of another type, because such keys have no order that is the same on every rank.
void PushSortedKeys(lua_State* L, int index);

// Each of these functions pushes a new table with the functions of one library. OpenEnvironment starts from the table
// of the base functions and adds the other tables to it as string, table and math.
void PushBaseFunctions(lua_State* L);
void PushStringFunctions(lua_State* L);
void PushTableFunctions(lua_State* L);
void PushMathFunctions(lua_State* L);
// The Lua functions string.format, pairs, next and ipairs.
int Format(lua_State* L);
int Pairs(lua_State* L);
int Next(lua_State* L);
int Ipairs(lua_State* L);

// Pushes the text that tostring returns to a plan for the value at `index`: without addresses.
void PushText(lua_State* L, int index);

// Returns the help for a name of another language or library, which an author may use in a plan by mistake: "write
// false" for False. Returns "" for all other names.
std::string HelpForForeignName(std::string_view name);

}  // namespace moonshard
