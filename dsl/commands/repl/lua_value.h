// LuaValue: converts the value of a line of Lua to plain data: lists and tables to JSON, values of the plan language
// (layouts, styles, rules) to text or to JSON.
#pragma once

#include "engine/core/base/json.h"
#include "engine/plan/plan/plan.h"

struct lua_State;

namespace moonshard {

// The value at stack index `index`. A table nested deeper than a few levels becomes "{...}". After a maximum number of
// entries, one "..." replaces the remaining entries. Each entry is charged to the budget of the script. May raise a Lua
// error.
JsonValue ToJson(lua_State* L, int index);

// A rule as `at` makes it: pattern, style or layout, source.
JsonValue ToJson(const Rule& rule);
JsonValue ToJson(const Style& style);

}  // namespace moonshard
