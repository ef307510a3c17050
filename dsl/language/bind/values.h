// Values: the values that builtins of the plan language take and return, as Lua userdata.
#pragma once

#include <string>

#include "dsl/language/state/userdata.h"
#include "engine/core/base/json.h"
#include "engine/plan/plan/plan.h"

namespace moonshard {

// re"..." or numbered"...": a pattern in another syntax than glob.
struct PatternValue {
  std::string text;
  PatternSyntax syntax = PatternSyntax::kRegex;
};
// divides(...): checked where it was called; plan{} takes it as an entry.
struct AssertionValue {
  std::string text;
};
// default(style).
struct DefaultValue {
  Style style;
  SourceSpan source;
};
// A part of config.json that is an object or a list; `path` is "" for the root.
struct ConfigValue {
  const JsonValue* json = nullptr;
  std::string path;
};
struct MeshValue {};
struct ModelValue {};

// Makes the metatables of all of them, with == and tostring. config, mesh and model get their further metamethods in
// input_builtins.cc and model_builtins.cc.
void RegisterValues(lua_State* L);

// About how much memory a value holds outside of itself, for the limit.
size_t HeldBy(const Placement& placement);
size_t HeldBy(const Style& style);
size_t HeldBy(const Rule& rule);

// Each leaves the value on top of the stack and returns 1.
int PushLayout(lua_State* L, Placement placement);
int PushStyle(lua_State* L, Style style);
int PushRule(lua_State* L, Rule rule);
// Null is nil; objects and lists become ConfigValue.
int PushJson(lua_State* L, const JsonValue& json, const std::string& path);

}  // namespace moonshard
