// Values: the values that builtins of the plan language take and return, as Lua userdata.
#pragma once

#include <string>

#include "dsl/language/state/userdata.h"
#include "engine/core/base/json.h"
#include "engine/plan/plan/plan.h"

namespace moonshard {

// The value of re"..." or numbered"...": a pattern in another syntax than glob.
struct PatternValue {
  std::string text;
  PatternSyntax syntax = PatternSyntax::kRegex;
};
// The value of divides(...) and fits(...), which plan{} accepts as an entry. The calls run the checks; plan{} does not.
struct AssertionValue {
  std::string text;
};
// The value of default(style).
struct DefaultValue {
  Style style;
  SourceSpan source;
};
// An object or list within config.json.
struct ConfigValue {
  const JsonValue* json = nullptr;  // owned by the inputs of the evaluation
  std::string path;                 // "rope_scaling"; "" for the root
};
// The values of the builtins mesh and model.
struct MeshValue {};
struct ModelValue {};

// Creates the metatables of all value types, with == and tostring. input_builtins.cc and model_builtins.cc add further
// metamethods for config, mesh and model.
void RegisterValues(lua_State* L);

// Returns the approximate number of bytes that a value holds on the heap. These bytes count towards the memory limit.
size_t HeldBy(const Placement& placement);
size_t HeldBy(const Style& style);
size_t HeldBy(const Rule& rule);

// Each of these functions pushes the value and returns 1.
int PushLayout(lua_State* L, Placement placement);
int PushStyle(lua_State* L, Style style);
int PushRule(lua_State* L, Rule rule);
// As above for a JSON value: null becomes nil; an object or a list becomes a ConfigValue with `path`. `json` must
// outlive the Lua state.
int PushJson(lua_State* L, const JsonValue& json, const std::string& path);

}  // namespace moonshard
