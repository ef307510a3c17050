// LuaValue: the value of a line of Lua as plain data: lists and tables as JSON, values of the plan language as their
// text or their parts.
#pragma once

#include "engine/core/base/json.h"
#include "engine/plan/plan/plan.h"

struct lua_State;

namespace moonshard {

// The value at `index`. Tables nested deeper than a few levels, and entries beyond a maximum, are "{...}" and "...";
// both are charged to the budget. May raise a Lua error.
JsonValue ToJson(lua_State* L, int index);

// One rule as `at` makes it: pattern, style or layout, source.
JsonValue ToJson(const Rule& rule);
JsonValue ToJson(const Style& style);

}  // namespace moonshard
