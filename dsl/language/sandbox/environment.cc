// The environment is an allow list: names are copied into it one by one, and the global table of Lua is not reachable.
// What a script can reach beyond names is metatables: of strings (replaced in OpenEnvironment) and of userdata (each
// has __metatable = false; getmetatable and setmetatable do not exist in any case).
//
// What an escape would need, and where it ends. A plan is text from anywhere; it must not read the host, run without
// end, or differ between ranks:
//
//   reach a function of Lua that is not listed      only what PushBaseFunctions and three libraries copy is there
//   change a builtin for another file of the plan   every table of the language is a view; writes are refused
//   catch the error of a limit and go on            there is no pcall, and a dead state raises again (script_state.cc)
//   see an address, hash order, clock or rank       tostring shows none, pairs sorts, the others do not exist
//
// Libraries, options and modules with named fields are views (MakeReadOnly), so that a required module or a builtin
// cannot be changed by one file of a plan in a way that another file sees. A read of a missing name returns poison
// after it is reported, not nil: `attempt to call a nil value` would name the symptom, and would end the evaluation.
//
// The session of the REPL needs the opposite, names that persist from line to line. Its view reads the session's own
// names first, then those of the language, and writes to the first table only: an assignment cannot replace a builtin
// for the lines that follow.
#include "dsl/language/sandbox/environment.h"

#include <algorithm>

#include "dsl/language/state/poison.h"
#include "engine/core/base/text.h"

namespace moonshard {
namespace {

const char kNamesKey = 0;        // registry: name -> value
const char kEnvironmentKey = 0;  // registry: the read-only view of it
const char kSessionNamesKey = 0;
const char kDeprecatedKey = 0;  // registry: old name -> { replacement, help }
const char kSessionKey = 0;     // registry: the view of a session's names and these

// Sorted, because the nearest match is the first of equally near names, and Lua's order would differ between ranks.
std::vector<std::string> StringKeys(lua_State* L, int table) {
  std::vector<std::string> keys;
  for (lua_pushnil(L); lua_next(L, table) != 0; lua_pop(L, 1)) {
    if (lua_type(L, -2) == LUA_TSTRING) keys.emplace_back(lua_tostring(L, -2));
  }
  std::ranges::sort(keys);
  return keys;
}

// Adds the locals and upvalues that the running Lua function can see.
void AddVisibleLocals(lua_State* L, std::vector<std::string>& names) {
  lua_Debug record;
  if (lua_getstack(L, 1, &record) == 0) return;
  const auto add = [&](const char* name) {
    if (name[0] != '(' && std::string_view(name) != "_ENV") names.emplace_back(name);
    lua_pop(L, 1);
  };
  for (int i = 1; const char* name = lua_getlocal(L, &record, i); ++i) add(name);
  lua_getinfo(L, "f", &record);  // [function]
  for (int i = 1; const char* name = lua_getupvalue(L, -1, i); ++i) add(name);
  lua_pop(L, 1);
}

void ReportMissing(lua_State* L, const std::string& key, ReadOnlyKind kind, const std::string& label, int table) {
  ScriptState& state = ScriptState::From(L);
  std::vector<std::string> names = StringKeys(L, table);
  std::string help;
  switch (kind) {
    case ReadOnlyKind::kNames:
      AddVisibleLocals(L, names);
      help = HelpForForeignName(key);
      if (help.empty()) help = DidYouMean(key, names);
      state.Report(Finding::kUnknownName, "unknown name '" + key + "'", key, help);
      break;
    case ReadOnlyKind::kLibrary:
      state.Report(Finding::kUnknownKey, "'" + label + "' has no field '" + key + "'", key, DidYouMean(key, names, 40));
      break;
    case ReadOnlyKind::kOptions:
      state.Report(Finding::kUnknownOption, "no option '" + key + "' is declared", key, DidYouMean(key, names));
      break;
  }
}

// If the name at `index` is deprecated: reports it and pushes the value of its replacement among the names at `names`.
// The old name is not itself an entry: it would be suggested by DidYouMean, and a read of it would not pass here.
bool PushDeprecated(lua_State* L, int index, int names) {
  index = lua_absindex(L, index);
  const int top = lua_gettop(L);
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &kDeprecatedKey) == LUA_TTABLE && lua_type(L, index) == LUA_TSTRING) {
    lua_pushvalue(L, index);
    if (lua_rawget(L, -2) == LUA_TTABLE) {
      lua_rawgeti(L, -1, 1);
      lua_rawgeti(L, -2, 2);
      const std::string old = lua_tostring(L, index);
      const std::string replacement = lua_tostring(L, -2);
      ScriptState::From(L).Report(Finding::kDeprecatedName, "'" + old + "' is now called '" + replacement + "'", old,
                                  lua_tostring(L, -1));
      lua_pushstring(L, replacement.c_str());
      lua_rawget(L, names);
      lua_replace(L, top + 1);
      lua_settop(L, top + 1);
      return true;
    }
  }
  lua_settop(L, top);
  return false;
}

// Upvalues: 1 the table, 2 the kind, 3 the label. Every read of a view comes here, also of names that exist, since the
// view is empty; they cost one raw read. The key is read raw. Poison as a key gives poison without a second report, so
// that one misspelled name is one finding.
int ReadMissing(lua_State* L) {
  const int table = lua_upvalueindex(1);
  lua_pushvalue(L, 2);
  if (lua_rawget(L, table) != LUA_TNIL) return 1;
  if (IsPoison(L, 2)) return PushPoison(L);
  const bool names = lua_tointeger(L, lua_upvalueindex(2)) == static_cast<int>(ReadOnlyKind::kNames);
  if (names && PushDeprecated(L, 2, table)) return 1;
  lua_pushvalue(L, table);  // upvalue indices do not count from the top
  PushText(L, 2);
  const std::string key = lua_tostring(L, -1);
  const auto kind = static_cast<ReadOnlyKind>(lua_tointeger(L, lua_upvalueindex(2)));
  ReportMissing(L, key, kind, lua_tostring(L, lua_upvalueindex(3)), lua_gettop(L) - 1);
  return PushPoison(L);
}

// An assignment without `local`. It is refused also for a name that is new: a global of one file would be visible in
// all others, and a misspelled assignment would make a second variable in silence. The name is set to poison behind
// the view, so that later reads of it do not report it again.
int RefuseWrite(lua_State* L) {
  ScriptState& state = ScriptState::From(L);
  PushText(L, 2);
  const std::string key = lua_tostring(L, -1);
  const auto kind = static_cast<ReadOnlyKind>(lua_tointeger(L, lua_upvalueindex(2)));
  const std::string label = lua_tostring(L, lua_upvalueindex(3));
  if (kind != ReadOnlyKind::kNames) {
    state.Report(Finding::kReadOnly, "'" + label + "' is read-only: '" + key + "' cannot be assigned", key);
    return 0;
  }
  lua_pushvalue(L, 2);
  if (lua_rawget(L, lua_upvalueindex(1)) != LUA_TNIL) {
    if (IsPoison(L, -1)) return 0;  // an earlier assignment is reported
    state.Report(Finding::kReadOnly, "'" + key + "' is a builtin and cannot be changed", key,
                 "'local " + key + " = ...' declares a local variable");
    return 0;
  }
  state.Report(Finding::kReadOnly, "only local variables can be assigned; '" + key + "' is not a local variable", key,
               "write 'local " + key + "'");
  lua_settop(L, 2);
  PushPoison(L);
  lua_rawset(L, lua_upvalueindex(1));  // reported once
  return 0;
}

// Upvalues of the session's functions: 1 its own names, 2 the language's. For a missing name both tables are copied
// into one, as the list in which the nearest match is searched; that costs a copy only on the way to a report.
int ReadSession(lua_State* L) {
  lua_settop(L, 2);
  for (const int table : {lua_upvalueindex(1), lua_upvalueindex(2)}) {
    lua_pushvalue(L, 2);
    if (lua_rawget(L, table) != LUA_TNIL) return 1;
    lua_pop(L, 1);
  }
  if (IsPoison(L, 2)) return PushPoison(L);
  if (PushDeprecated(L, 2, lua_upvalueindex(2))) return 1;
  lua_newtable(L);  // [view, key, names of both]
  for (const int table : {lua_upvalueindex(1), lua_upvalueindex(2)}) {
    lua_pushvalue(L, table);
    for (lua_pushnil(L); lua_next(L, 4) != 0;) {
      lua_pushvalue(L, -2);
      lua_insert(L, -2);
      lua_rawset(L, 3);
    }
    lua_pop(L, 1);
  }
  PushText(L, 2);
  const std::string key = lua_tostring(L, -1);
  ReportMissing(L, key, ReadOnlyKind::kNames, "", 3);
  return PushPoison(L);
}

int WriteSession(lua_State* L) {
  lua_settop(L, 3);
  lua_pushvalue(L, 2);
  const bool own = lua_rawget(L, lua_upvalueindex(1)) != LUA_TNIL;
  lua_pushvalue(L, 2);
  if (!own && lua_rawget(L, lua_upvalueindex(2)) != LUA_TNIL) {
    PushText(L, 2);
    const std::string key = lua_tostring(L, -1);
    ScriptState::From(L).Report(Finding::kReadOnly, "'" + key + "' is a builtin and cannot be changed", key,
                                "'local " + key + " = ...' declares a local variable");
    return 0;
  }
  lua_settop(L, 3);
  lua_rawset(L, lua_upvalueindex(1));
  return 0;
}

// pairs over the view iterates over the table behind it: the view itself is always empty, and without this a loop over
// a module would see nothing.
int ViewPairs(lua_State* L) {
  lua_settop(L, 0);
  lua_pushvalue(L, lua_upvalueindex(1));
  return Pairs(L);
}

void PushViewFunction(lua_State* L, lua_CFunction function, int table, ReadOnlyKind kind, const char* label) {
  lua_pushvalue(L, table);
  lua_pushinteger(L, static_cast<int>(kind));
  lua_pushstring(L, label);
  lua_pushcclosure(L, function, 3);
}

}  // namespace

// The view is an empty table whose metamethods read the real one, which only their upvalues hold: a script can neither
// reach it nor replace the metatable (__metatable is false). Every write and every read of a missing key goes through
// the metamethods, which report it with the nearest match.
void MakeReadOnly(lua_State* L, ReadOnlyKind kind, const char* label) {
  const int table = lua_gettop(L);
  lua_newtable(L);           // [table, view]
  lua_createtable(L, 0, 4);  // [table, view, meta]
  PushViewFunction(L, &Guarded<&ReadMissing>, table, kind, label);
  lua_setfield(L, -2, "__index");
  PushViewFunction(L, &Guarded<&RefuseWrite>, table, kind, label);
  lua_setfield(L, -2, "__newindex");
  PushViewFunction(L, &Guarded<&ViewPairs>, table, kind, label);
  lua_setfield(L, -2, "__pairs");
  lua_pushboolean(L, 0);
  lua_setfield(L, -2, "__metatable");
  lua_setmetatable(L, -2);
  lua_remove(L, table);
}

void AddFunctions(lua_State* L, const std::vector<NamedFunction>& functions) {
  for (const NamedFunction& f : functions) {
    lua_pushcfunction(L, f.function);
    lua_setfield(L, -2, f.name);
  }
}

void OpenEnvironment(lua_State* L) {
  PushBaseFunctions(L);  // [names]
  const int names = lua_gettop(L);
  PushStringFunctions(L);
  MakeReadOnly(L, ReadOnlyKind::kLibrary, "string");
  // ("x"):rep(3) finds the same functions; Lua's own metatable of strings would be shared and writable.
  lua_pushliteral(L, "");
  lua_createtable(L, 0, 2);  // [names, string, "", meta]
  lua_pushvalue(L, -3);
  lua_setfield(L, -2, "__index");
  lua_pushboolean(L, 0);
  lua_setfield(L, -2, "__metatable");
  lua_setmetatable(L, -2);
  lua_pop(L, 1);
  lua_setfield(L, names, "string");
  PushTableFunctions(L);
  MakeReadOnly(L, ReadOnlyKind::kLibrary, "table");
  lua_setfield(L, names, "table");
  PushMathFunctions(L);
  MakeReadOnly(L, ReadOnlyKind::kLibrary, "math");
  lua_setfield(L, names, "math");
  lua_pushvalue(L, names);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &kNamesKey);
  MakeReadOnly(L, ReadOnlyKind::kNames, "the plan language");
  lua_rawsetp(L, LUA_REGISTRYINDEX, &kEnvironmentKey);
}

void PushEnvironment(lua_State* L) { lua_rawgetp(L, LUA_REGISTRYINDEX, &kEnvironmentKey); }

void PushSessionNames(lua_State* L) {
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &kSessionNamesKey) == LUA_TTABLE) return;
  lua_pop(L, 1);
  lua_newtable(L);
  lua_pushvalue(L, -1);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &kSessionNamesKey);
}

void PushSessionEnvironment(lua_State* L) {
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &kSessionKey) == LUA_TTABLE) return;
  lua_pop(L, 1);
  lua_newtable(L);           // [view]
  lua_createtable(L, 0, 4);  // [view, meta]
  const auto add = [&](const char* event, lua_CFunction function) {
    PushSessionNames(L);
    lua_rawgetp(L, LUA_REGISTRYINDEX, &kNamesKey);
    lua_pushcclosure(L, function, 2);
    lua_setfield(L, -2, event);
  };
  add("__index", &Guarded<&ReadSession>);
  add("__newindex", &Guarded<&WriteSession>);
  add("__pairs", &Guarded<&ViewPairs>);
  lua_pushboolean(L, 0);
  lua_setfield(L, -2, "__metatable");
  lua_setmetatable(L, -2);
  lua_pushvalue(L, -1);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &kSessionKey);
}

void SetDeprecated(lua_State* L, const char* name, const char* replacement, const char* help) {
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &kDeprecatedKey) != LUA_TTABLE) {
    lua_pop(L, 1);
    lua_newtable(L);
    lua_pushvalue(L, -1);
    lua_rawsetp(L, LUA_REGISTRYINDEX, &kDeprecatedKey);
  }
  lua_createtable(L, 2, 0);
  lua_pushstring(L, replacement);
  lua_rawseti(L, -2, 1);
  lua_pushstring(L, help);
  lua_rawseti(L, -2, 2);
  lua_setfield(L, -2, name);
  lua_pop(L, 1);
}

void SetName(lua_State* L, const char* name) {
  lua_rawgetp(L, LUA_REGISTRYINDEX, &kNamesKey);
  lua_insert(L, -2);
  lua_setfield(L, -2, name);
  lua_pop(L, 1);
}

}  // namespace moonshard
