// config, mesh.
#include "dsl/language/bind/arguments.h"
#include "dsl/language/bind/evaluation.h"
#include "dsl/language/bind/values.h"
#include "dsl/language/sandbox/environment.h"
#include "engine/core/base/text.h"

namespace moonshard {
namespace {

std::string PathTo(const ConfigValue& config, const std::string& key) {
  return config.path.empty() ? key : config.path + "." + key;
}

// config:get(key, default): the field, or the default where it is missing or null.
int ConfigGet(lua_State* L) {
  if (IsPoison(L, 1) || IsPoison(L, 2)) return PushPoison(L);
  const ConfigValue* config = Userdata<ConfigValue>::To(L, 1);
  const std::optional<std::string> key = StringAt(L, 2);
  if (config == nullptr)
    return BadArgument(
        L, "get", "call it with a colon, as in config:get(key, default); the first argument must be the config", 1);
  if (!key) return BadArgument(L, "get", "the key must be a string", 2);
  lua_settop(L, 3);
  const JsonValue* field = config->json->Find(*key);
  if (field != nullptr && !field->is_null()) return PushJson(L, *field, PathTo(*config, *key));
  return 1;
}

int ConfigIndex(lua_State* L) {
  const ConfigValue& config = *Userdata<ConfigValue>::To(L, 1);
  if (IsPoison(L, 2)) return PushPoison(L);
  if (config.json->is_array()) {
    const JsonValue::Array& list = config.json->AsArray();
    const std::optional<int64_t> i = IntegerAt(L, 2);
    if (!i) return BadArgument(L, "config." + config.path, "the index of a list must be an integer", 2);
    if (*i < 1 || *i > static_cast<int64_t>(list.size())) return 0;
    return PushJson(L, list[static_cast<size_t>(*i - 1)], config.path + "[" + std::to_string(*i) + "]");
  }
  const std::optional<std::string> key = StringAt(L, 2);
  if (!key) return BadArgument(L, "config", "the key must be a string", 2);
  if (const JsonValue* field = config.json->Find(*key)) return PushJson(L, *field, PathTo(config, *key));
  if (*key == "get") {
    lua_pushcfunction(L, &Guarded<&ConfigGet>);
    return 1;
  }
  const std::string nearest = NearestName(*key, config.json->Keys());
  ScriptState::From(L).Report(
      Finding::kUnknownConfigKey, "config.json has no field '" + PathTo(config, *key) + "'", *key,
      !nearest.empty() ? "did you mean '" + nearest + "'?"
                       : "config:get(\"" + *key + "\", default) returns a default for a missing field");
  return PushPoison(L);
}

int ConfigLength(lua_State* L) {
  const ConfigValue& config = *Userdata<ConfigValue>::To(L, 1);
  lua_pushinteger(L, config.json->is_array() ? static_cast<lua_Integer>(config.json->AsArray().size()) : 0);
  return 1;
}

int ConfigPairs(lua_State* L) {
  const ConfigValue& config = *Userdata<ConfigValue>::To(L, 1);
  lua_settop(L, 0);
  lua_newtable(L);
  if (config.json->is_array()) {
    lua_Integer i = 0;
    for (const JsonValue& item : config.json->AsArray()) {
      PushJson(L, item, config.path + "[" + std::to_string(++i) + "]");
      lua_rawseti(L, 1, i);
    }
  } else {
    for (const auto& [key, field] : config.json->AsObject()) {
      PushJson(L, field, PathTo(config, key));
      lua_setfield(L, 1, key.c_str());
    }
  }
  return Pairs(L);
}

int MeshIndex(lua_State* L) {
  if (IsPoison(L, 2)) return PushPoison(L);
  const std::optional<std::string> name = StringAt(L, 2);
  if (!name) return BadArgument(L, "mesh", "the mesh axis must be a name", 2);
  const MeshShape& mesh = Evaluation::From(L).inputs().mesh;
  if (*name == "cp_heads") {
    lua_pushinteger(L, mesh.cp_heads());
    return 1;
  }
  const std::optional<MeshAxis> axis = MeshAxisFromName(*name);
  if (!axis) {
    const std::vector<std::string> names(MeshAxisNames().rbegin(),
                                         MeshAxisNames().rend());  // tp first, the most common one
    ScriptState::From(L).Report(
        Finding::kUnknownAxis, "there is no mesh axis '" + *name + "'", *name,
        *name == "rank" ? "a plan is the same on every rank and cannot depend on the rank" : DidYouMean(*name, names));
    return PushPoison(L);
  }
  lua_pushinteger(L, mesh.size(*axis));
  return 1;
}

int RefuseWrite(lua_State* L) {
  PushText(L, 1);
  const std::string name = lua_tostring(L, -1);
  ScriptState::From(L).Report(Finding::kReadOnly, "'" + name + "' cannot be changed", name);
  return 0;
}

template <class InputT>
void AddMetamethods(lua_State* L, InputT value, const std::vector<NamedFunction>& functions) {
  Userdata<InputT>::Push(L, std::move(value));
  lua_getmetatable(L, -1);
  AddFunctions(L, functions);
  lua_pop(L, 1);
}

}  // namespace

void AddInputBuiltins(lua_State* L) {
  AddMetamethods<ConfigValue>(L, {&Evaluation::From(L).inputs().config, ""},
                              {{"__index", &Guarded<&ConfigIndex>},
                               {"__newindex", &Guarded<&RefuseWrite>},
                               {"__len", &Guarded<&ConfigLength>},
                               {"__pairs", &Guarded<&ConfigPairs>}});
  SetName(L, "config");
  AddMetamethods<MeshValue>(L, {}, {{"__index", &Guarded<&MeshIndex>}, {"__newindex", &Guarded<&RefuseWrite>}});
  SetName(L, "mesh");
}

}  // namespace moonshard
