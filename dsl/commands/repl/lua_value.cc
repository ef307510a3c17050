#include "dsl/commands/repl/lua_value.h"

#include "dsl/language/bind/arguments.h"
#include "dsl/language/bind/evaluation.h"
#include "dsl/language/bind/values.h"
#include "dsl/language/sandbox/environment.h"
#include "engine/plan/explain/texts.h"

namespace moonshard {
namespace {

constexpr int kDeepest = 8;
constexpr int kMostEntries = 20'000;  // of all tables of one value

JsonValue ToJson(const std::vector<std::optional<Redistribution>>& redistributions) {
  JsonValue::Array out;
  for (const std::optional<Redistribution>& move : redistributions)
    out.push_back(move ? JsonValue(RedistributionText(*move)) : JsonValue(false));
  return out;
}

JsonValue ToJson(const std::map<std::string, Placement>& params) {
  JsonValue::Object out;
  for (const auto& [name, placement] : params) out[name] = placement.ToText();
  return out;
}

// A value is read through its own `__pairs`, so it may run code of the session; that code is under the same limits as
// the line. Levels and the number of entries are limited, because a table may contain itself.
class Reader {
 public:
  explicit Reader(lua_State* L) : lua_(L) {}

  JsonValue Read(int index, int depth) {
    index = lua_absindex(lua_, index);
    luaL_checkstack(lua_, 12, "a value nested too deeply");
    switch (lua_type(lua_, index)) {
      case LUA_TNIL: return nullptr;
      case LUA_TBOOLEAN: return lua_toboolean(lua_, index) != 0;
      case LUA_TNUMBER:
        if (lua_isinteger(lua_, index) != 0) return static_cast<int64_t>(lua_tointeger(lua_, index));
        return lua_tonumber(lua_, index);
      case LUA_TSTRING: return *StringAt(lua_, index);
      case LUA_TTABLE: return ReadTable(index, depth);
      case LUA_TUSERDATA: return ReadUserdata(index);
      default: return std::string(luaL_typename(lua_, index));
    }
  }

 private:
  // Through pairs, so that the contents of options{} and of a stdlib module are shown.
  JsonValue ReadTable(int index, int depth) {
    if (depth >= kDeepest) return "{...}";
    std::vector<std::pair<JsonValue, JsonValue>> entries;
    lua_pushcfunction(lua_, &Guarded<&Pairs>);
    lua_pushvalue(lua_, index);
    lua_call(lua_, 1, 3);  // [next, state, key]
    bool cut = false;
    while (true) {
      lua_pushvalue(lua_, -3);
      lua_pushvalue(lua_, -3);
      lua_pushvalue(lua_, -3);
      lua_call(lua_, 2, 2);  // [next, state, key, new key, value]
      if (lua_isnil(lua_, -2)) {
        lua_pop(lua_, 5);
        break;
      }
      ScriptState::From(lua_).Charge(20);
      cut = ++entries_ > kMostEntries;
      if (!cut) entries.emplace_back(Read(-2, depth), Read(-1, depth + 1));
      if (cut) {
        lua_pop(lua_, 5);
        break;
      }
      lua_pop(lua_, 1);
      lua_replace(lua_, -2);
    }
    return Gathered(entries, cut);
  }

  static JsonValue Gathered(const std::vector<std::pair<JsonValue, JsonValue>>& entries, bool cut) {
    bool list = true;
    for (size_t i = 0; i < entries.size(); ++i) list &= entries[i].first == JsonValue(static_cast<int64_t>(i + 1));
    if (list) {
      JsonValue::Array out;
      for (const auto& [key, value] : entries) out.push_back(value);
      if (cut) out.emplace_back("...");
      return out;
    }
    JsonValue::Object out;
    for (const auto& [key, value] : entries) out[key.is_string() ? key.AsString() : WriteJson(key, 0)] = value;
    if (cut) out["..."] = "...";
    return out;
  }

  JsonValue ReadUserdata(int index) {
    if (const auto* style = Userdata<Style>::To(lua_, index)) return moonshard::ToJson(*style);
    if (const auto* rule = Userdata<Rule>::To(lua_, index)) return moonshard::ToJson(*rule);
    if (const auto* config = Userdata<ConfigValue>::To(lua_, index)) return *config->json;
    if (const auto* plan = Userdata<Plan>::To(lua_, index)) {
      JsonValue::Array rules;
      for (const Rule& rule : plan->rules) rules.push_back(moonshard::ToJson(rule));
      return rules;
    }
    const Evaluation& evaluation = Evaluation::From(lua_);
    if (Userdata<MeshValue>::To(lua_, index) != nullptr) {
      JsonValue::Object axes;
      for (MeshAxis axis : kMeshAxes) axes[ToString(axis)] = evaluation.inputs().mesh.size(axis);
      return axes;
    }
    if (const ModuleTree* tree = evaluation.inputs().model;
        tree != nullptr && Userdata<ModelValue>::To(lua_, index) != nullptr) {
      return JsonValue::Object{{"modules", tree->modules().size()}, {"parameters", tree->total_elements()}};
    }
    PushText(lua_, index);
    JsonValue text = *StringAt(lua_, -1);
    lua_pop(lua_, 1);
    return text;
  }

  lua_State* lua_;
  int entries_ = 0;
};

}  // namespace

JsonValue ToJson(lua_State* L, int index) { return Reader(L).Read(index, 0); }

JsonValue ToJson(const Style& style) {
  JsonValue::Object out = {{"name", style.name}};
  if (!style.params.empty()) out["params"] = ToJson(style.params);
  if (!style.vectors.empty()) out["vectors"] = ToJson(style.vectors);
  if (!style.kinds.empty() || !style.kind_styles.empty()) {
    JsonValue::Object kinds;
    for (const auto& [kind, params] : style.kinds) kinds[kind] = JsonValue::Object{{"params", ToJson(params)}};
    for (const KindStyle& own : style.kind_styles) kinds[own.kind] = ToJson(own.style);
    out["kinds"] = std::move(kinds);
  }
  if (!style.inputs.empty()) out["inputs"] = ToJson(style.inputs);
  if (!style.outputs.empty()) out["outputs"] = ToJson(style.outputs);
  if (!style.after.empty()) out["after"] = JsonValue::Array(style.after.begin(), style.after.end());
  if (style.heads > 0) out["heads"] = style.heads;
  if (style.lookup == Lookup::kMasked) out["lookup"] = "masked";
  if (style.bare) out["bare"] = true;
  if (!style.missing.empty()) out["missing"] = style.missing;
  return out;
}

JsonValue ToJson(const Rule& rule) {
  JsonValue::Object out = {{"pattern", rule.pattern}, {"source", rule.source.ToString()}};
  if (rule.parameter) {
    out["layout"] = rule.parameter->ToText();
  } else {
    out["style"] = rule.style.name;
  }
  if (rule.optional) out["optional"] = true;
  return out;
}

}  // namespace moonshard
