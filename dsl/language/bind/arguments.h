// Reading the arguments of a word. What is wrong is reported at the user's line, and the word answers with poison.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dsl/language/bind/names.h"
#include "dsl/language/state/guarded.h"
#include "dsl/language/state/poison.h"
#include "engine/layout/layout.h"

namespace moonshard {

// The value at `index` for messages: "nil", "'abc'", "3", "a table", "a layout".
std::string Describe(lua_State* L, int index);

// Reports "`word`: `what`, got ..." (kBadArgument) for the value at `index` and leaves poison; returns 1.
int BadArgument(lua_State* L, const std::string& word, const std::string& what, int index);

// The same with the caret at `where` and this help, each where it is not empty.
int BadArgument(lua_State* L, const std::string& word, const std::string& what, int index, SourceSpan where,
                std::string help);

// The word of the language that the function at `index` is; null where it is another one.
const NameInfo* WordOf(lua_State* L, int index);

// A whole number; also a float without a fraction (4096 / 2).
std::optional<int64_t> IntegerAt(lua_State* L, int index);
std::optional<std::string> StringAt(lua_State* L, int index);
const Placement* LayoutAt(lua_State* L, int index);
// Whether `index` holds a plain table, not a value of the language.
bool IsTable(lua_State* L, int index);

// Reports every key of the table at `index` that is not one of `keys` (kUnknownKey, with the nearest). `positional`:
// entries without names are welcome. False where there was one.
bool CheckKeys(lua_State* L, int index, const std::string& word, std::span<const std::string> keys, bool positional);
// Whether a value of the table at `index` is poison.
bool HoldsPoison(lua_State* L, int index);
// The positive integer keys of the table at `index`, smallest first.
std::vector<lua_Integer> PositionsOf(lua_State* L, int index);

}  // namespace moonshard
