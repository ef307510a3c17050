// options.
#include <charconv>
#include <cmath>
#include <map>
#include <type_traits>
#include <utility>

#include "dsl/language/bind/arguments.h"
#include "dsl/language/bind/evaluation.h"
#include "dsl/language/bind/values.h"
#include "dsl/language/sandbox/environment.h"

namespace moonshard {
namespace {

bool SameKind(const JsonValue& a, const JsonValue& b) {
  return (a.is_bool() && b.is_bool()) || (a.is_string() && b.is_string()) ||
         ((a.is_int() || a.is_double()) && (b.is_int() || b.is_double()));
}

// "true or false", ...: what an option with this default takes.
const char* TypeText(const JsonValue& value) {
  if (value.is_bool()) return "true or false";
  if (value.is_int()) return "an integer";
  if (value.is_double()) return "a number";
  return "a string";
}

template <class Number>
std::optional<JsonValue> ParseNumber(const std::string& text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  if constexpr (std::is_floating_point_v<Number>) {
    if (!std::isfinite(number)) return std::nullopt;
  }
  return JsonValue(number);
}

// `given` as a value of the type of `declared`; nothing where it is none.
std::optional<JsonValue> Fit(const JsonValue& given, const JsonValue& declared) {
  if (given.is_string() && !declared.is_string()) {
    const std::string& text = given.AsString();
    if (declared.is_int()) return ParseNumber<int64_t>(text);
    if (declared.is_double()) return ParseNumber<double>(text);
    if (text == "true") return JsonValue(true);
    if (text == "false") return JsonValue(false);
    return std::nullopt;
  }
  if (declared.is_double() && given.is_int()) return JsonValue(given.AsDouble());
  const bool same = (given.is_bool() && declared.is_bool()) || (given.is_int() && declared.is_int()) ||
                    (given.is_double() && declared.is_double()) || (given.is_string() && declared.is_string());
  return same ? std::optional(given) : std::nullopt;
}

std::optional<JsonValue> DefaultAt(lua_State* L, int index) {
  if (lua_isboolean(L, index)) return JsonValue(lua_toboolean(L, index) != 0);
  if (const std::optional<std::string> text = StringAt(L, index)) return JsonValue(*text);
  if (lua_isinteger(L, index) != 0) return JsonValue(static_cast<int64_t>(lua_tointeger(L, index)));
  if (lua_type(L, index) == LUA_TNUMBER) return JsonValue(lua_tonumber(L, index));
  return std::nullopt;
}

std::string Quoted(const JsonValue& value) {
  return value.is_string() ? "'" + value.AsString() + "'" : WriteJson(value, 0);
}

// Old names of options by the new ones, and old values: { whole_attention = "all_heads", ["fused=no"] = "" }.
struct Renamed {
  std::map<std::string, std::string> names;
  std::map<std::pair<std::string, std::string>, JsonValue> values;
};

// The table at `index`. A row that is none is reported.
Renamed ReadRenamed(lua_State* L, int index) {
  Renamed out;
  const int top = lua_gettop(L);
  if (lua_isnoneornil(L, index)) return out;
  PushSortedKeys(L, index);
  for (lua_Integer i = 1; lua_rawgeti(L, top + 1, i) != LUA_TNIL; ++i, lua_settop(L, top + 1)) {
    const std::optional<std::string> old = StringAt(L, -1);
    lua_pushvalue(L, -1);
    lua_rawget(L, index);
    const std::optional<std::string> now = StringAt(L, -1);
    const size_t equals = old ? old->find('=') : std::string::npos;
    if (old && equals != std::string::npos) {
      if (const std::optional<JsonValue> value = DefaultAt(L, -1)) {
        out.values.emplace(std::pair(old->substr(0, equals), old->substr(equals + 1)), *value);
        continue;
      }
    } else if (old && now) {
      out.names.emplace(*now, *old);
      Evaluation::From(L).old_options().insert(*old);
      continue;
    }
    BadArgument(L, "options",
                "a renamed option must be written as old = \"new\", and a renamed value as [\"option=old\"] = \"new\"",
                5);
  }
  lua_settop(L, top);
  return out;
}

// What the option got from outside: under its name, or, with a warning, under its old one.
std::optional<JsonValue> GivenValue(Evaluation& evaluation, const std::string& name, const Renamed& renamed,
                                    const SourceSpan& here) {
  const std::map<std::string, JsonValue>& given = evaluation.inputs().options;
  if (const auto found = given.find(name); found != given.end()) return found->second;
  const auto old = renamed.names.find(name);
  if (old == renamed.names.end()) return std::nullopt;
  const std::string message = "option '" + old->second + "' is now called '" + name + "'";
  if (const auto found = evaluation.options().find(old->second); found != evaluation.options().end()) {
    ReportOldName(evaluation.state(), message, found->second.source);
    return found->second.value;
  }
  const auto found = given.find(old->second);
  if (found == given.end()) return std::nullopt;
  ReportOldName(evaluation.state(), message, here);
  return found->second;
}

// An old value gives way, with a warning, to the new one.
JsonValue WithoutOldValue(Evaluation& evaluation, const std::string& name, const Renamed& renamed, JsonValue value,
                          const SourceSpan& where) {
  const auto now = value.is_string() ? renamed.values.find({name, value.AsString()}) : renamed.values.end();
  if (now == renamed.values.end()) return value;
  ReportOldName(evaluation.state(),
                "value " + Quoted(value) + " of option '" + name + "' is now " + Quoted(now->second), where);
  return now->second;
}

// The value of an option whose default this plan gives: what was given from outside, what a plan that extends this one
// declared, or the default.
JsonValue Declare(Evaluation& evaluation, const std::string& name, const JsonValue& fallback, const Renamed& renamed) {
  ScriptState& state = evaluation.state();
  const SourceSpan here = state.UserSpan(name);
  const auto declared = evaluation.options().find(name);
  if (declared != evaluation.options().end()) {
    // A string from the command line may represent any type; a value in a plan has the type that it was written in.
    const std::optional<JsonValue> value = Fit(declared->second.value, fallback);
    if (value && SameKind(declared->second.fallback, fallback)) {
      return WithoutOldValue(evaluation, name, renamed, *value, declared->second.source);
    }
    Diagnostic d = MakeDiagnostic(Finding::kBadArgument, "option '" + name + "' is declared twice with different types",
                                  declared->second.source);
    d.declared = TypeText(declared->second.fallback);
    d.required = TypeText(fallback);
    const JsonValue& written = declared->second.fallback;
    if (written.is_string() && Fit(written, fallback)) d.help = "write " + written.AsString() + ", without quotes";
    d.related.push_back(here);
    state.Report(std::move(d));
    return fallback;
  }
  JsonValue value = fallback;
  if (const std::optional<JsonValue> given = GivenValue(evaluation, name, renamed, here)) {
    if (const std::optional<JsonValue> fitted = Fit(*given, fallback)) {
      value = WithoutOldValue(evaluation, name, renamed, *fitted, here);
    } else {
      Diagnostic d = MakeDiagnostic(Finding::kBadArgument, "option '" + name + "' has a value of the wrong type", here);
      d.declared = Quoted(*given);
      d.required = TypeText(fallback);
      state.Report(std::move(d));
    }
  }
  evaluation.options().emplace(name, DeclaredOption{value, fallback, here});
  return value;
}

int Options(lua_State* L) {
  if (AnyPoison(L)) return PushPoison(L);
  if (!IsTable(L, 1))
    return BadArgument(L, "options", "the argument must be a table, as in options { name = default }", 1);
  lua_settop(L, 2);
  if (!lua_isnil(L, 2) && !IsTable(L, 2))
    return BadArgument(L, "options", "the second argument must be a table of renamed options { old = \"new\" }", 2);
  const Renamed renamed = ReadRenamed(L, 2);
  lua_settop(L, 1);
  PushSortedKeys(L, 1);
  lua_newtable(L);  // [given, keys, values]
  for (lua_Integer i = 1; lua_rawgeti(L, 2, i) != LUA_TNIL; ++i, lua_settop(L, 3)) {
    lua_pushvalue(L, 4);
    lua_rawget(L, 1);  // [given, keys, values, key, default]
    const std::optional<std::string> name = StringAt(L, 4);
    const std::optional<JsonValue> fallback = DefaultAt(L, 5);
    if (!name) {
      BadArgument(L, "options", "each option must be written as name = default", 4);
      continue;
    }
    if (fallback) {
      PushJson(L, Declare(Evaluation::From(L), *name, *fallback, renamed), "");
    } else if (IsPoison(L, 5)) {
      lua_pushvalue(L, 5);
    } else {
      BadArgument(L, "options", "the default of '" + *name + "' must be a boolean, a number or a string", 5);
    }
    lua_setfield(L, 3, name->c_str());
  }
  lua_settop(L, 3);
  MakeReadOnly(L, ReadOnlyKind::kOptions, "options");
  return 1;
}

}  // namespace

void AddOptionBuiltins(lua_State* L) {
  lua_pushcfunction(L, &Guarded<&Options>);
  SetName(L, "options");
}

}  // namespace moonshard
