// style, takes.
#include <algorithm>

#include "dsl/language/bind/arguments.h"
#include "dsl/language/bind/evaluation.h"
#include "dsl/language/bind/values.h"
#include "dsl/language/sandbox/environment.h"
#include "engine/core/base/text.h"

namespace moonshard {
namespace {

constexpr std::string_view kNeeded = "needed ";  // before a type of takes: nil does not fit
constexpr lua_Integer kMostPositions = 64;       // arguments of a forward, outputs of one

// Reads one `style { ... }` table (argument 1) into a Style; reports what does not fit.
class StyleReader {
 public:
  explicit StyleReader(lua_State* L) : lua_(L) {}

  bool Read() {
    good_ = CheckKeys(lua_, 1, "style");
    style_.name = "custom";
    if (Field("name")) ReadName();
    if (Field("heads")) ReadHeads();
    if (Field("params")) ReadParams(-1, "params", style_.params);
    if (Field("vectors")) ReadParams(-1, "vectors", style_.vectors);
    if (Field("kinds")) ReadKinds();
    std::ranges::sort(style_.kind_styles, {}, &KindStyle::kind);  // the table's own order differs from run to run
    if (Field("inputs")) ReadRedistributions("inputs", style_.inputs);
    if (Field("outputs")) ReadRedistributions("outputs", style_.outputs);
    if (Field("after")) ReadAfter();
    if (Field("lookup")) ReadLookup();
    if (Field("route")) ReadRoute();
    if (Field("exchange")) ReadExchange();
    if (Field("ring")) ReadRing();
    if (Field("bare")) ReadBare();
    if (Field("missing")) ReadMissing();
    return good_;
  }
  Style Take() { return std::move(style_); }

 private:
  // Leaves the key's value on top of an otherwise empty stack; nil, false and poison are passed over.
  bool Field(const char* key) {
    lua_settop(lua_, 1);
    lua_getfield(lua_, 1, key);
    return Present(-1);
  }
  bool Present(int index) {
    if (IsPoison(lua_, index)) good_ = false;
    return lua_toboolean(lua_, index) != 0 && !IsPoison(lua_, index);
  }
  // Whether the record of the key allows the value on top of the stack; reports one that it does not.
  bool Allowed(const char* key) {
    if (IsAllowed(lua_, -1, KeyOf("style", key))) return true;
    Bad(MustBe("style", key));
    return false;
  }
  void Bad(const std::string& what, int index = -1) {
    BadArgument(lua_, "style", what, index);
    lua_pop(lua_, 1);
    good_ = false;
  }

  // Reports the value of `key` in the table at `table`.
  void BadKey(int table, const char* key, const std::string& what) {
    lua_getfield(lua_, table, key);
    Bad(what);
    lua_pop(lua_, 1);
  }

  void ReadName() {
    if (Allowed("name")) style_.name = *StringAt(lua_, -1);
  }

  void ReadHeads() {
    if (Allowed("heads")) style_.heads = *IntegerAt(lua_, -1);
  }

  void ReadParams(int index, const std::string& key, std::map<std::string, Placement>& params) {
    index = lua_absindex(lua_, index);
    if (!IsTable(lua_, index)) return Bad("'" + key + "' must map parameter names to layouts", index);
    for (lua_pushnil(lua_); lua_next(lua_, index) != 0; lua_pop(lua_, 1)) {
      if (!Present(-1)) continue;
      const std::optional<std::string> name = StringAt(lua_, -2);
      const Placement* layout = LayoutAt(lua_, -1);
      if (!name) {
        Bad("'" + key + "' must map parameter names to layouts", -2);
      } else if (layout == nullptr) {
        Bad("'" + key + "." + *name + "' must be a layout");
      } else {
        params.emplace(*name, *layout);
      }
    }
  }

  void ReadKinds() {
    const int index = lua_absindex(lua_, -1);
    if (!IsTable(lua_, index)) return Bad("'kinds' must map module kinds to styles or to tables of layouts");
    for (lua_pushnil(lua_); lua_next(lua_, index) != 0; lua_pop(lua_, 1)) {
      if (!Present(-1)) continue;
      const std::optional<std::string> kind = StringAt(lua_, -2);
      if (!kind) {
        Bad("'kinds' must map module kinds to styles or to tables of layouts", -2);
      } else if (const Style* own = Userdata<Style>::To(lua_, -1)) {
        style_.kind_styles.push_back({*kind, *own});
      } else {
        ReadParams(-1, "kinds." + *kind, style_.kinds[*kind]);
      }
    }
  }

  void ReadRedistributions(const std::string& key, std::vector<std::optional<Redistribution>>& redistributions) {
    const int index = lua_absindex(lua_, -1);
    if (!IsTable(lua_, index)) return Bad("'" + key + "' must be a list of pairs { from, to }");
    if (!CheckList(lua_, index, key)) good_ = false;
    for (const lua_Integer i : PositionsOf(lua_, index)) {
      if (i > kMostPositions) return Bad("'" + key + "' must have at most 64 positions", index);
      lua_rawgeti(lua_, index, i);
      redistributions.resize(static_cast<size_t>(i));
      if (Present(-1)) redistributions.back() = ReadRedistribution(key + "[" + std::to_string(i) + "]");
      lua_settop(lua_, index);
    }
  }

  std::optional<Redistribution> ReadRedistribution(const std::string& key) {
    const int pair = lua_absindex(lua_, -1);
    const auto bad = [&](int at) {
      Bad("'" + key + "' must be a pair of layouts { from, to }", at);
      return std::nullopt;
    };
    if (!IsTable(lua_, pair)) return bad(pair);
    if (HoldsPoison(lua_, pair)) {
      good_ = false;
      return std::nullopt;
    }
    if (lua_rawlen(lua_, pair) != 2) return bad(pair);
    lua_rawgeti(lua_, pair, 1);
    lua_rawgeti(lua_, pair, 2);
    for (const int at : {-2, -1}) {
      if (LayoutAt(lua_, at) == nullptr) return bad(at);
    }
    return Redistribution{*LayoutAt(lua_, -2), *LayoutAt(lua_, -1)};
  }

  void ReadAfter() {
    const int index = lua_absindex(lua_, -1);
    if (!IsTable(lua_, index)) return Bad("'after' must be a list of parameter names");
    for (const lua_Integer i : PositionsOf(lua_, index)) {
      lua_rawgeti(lua_, index, i);
      const std::optional<std::string> name = StringAt(lua_, -1);
      if (!name) return Bad("'after' must be a list of parameter names");
      style_.after.push_back(*name);
      lua_pop(lua_, 1);
    }
  }

  void ReadBare() {
    if (Allowed("bare")) style_.bare = true;
  }

  void ReadMissing() {
    if (Allowed("missing")) style_.missing = *StringAt(lua_, -1);
  }

  void ReadLookup() {
    if (Allowed("lookup") && StringAt(lua_, -1) == "masked") style_.lookup = Lookup::kMasked;
  }

  void ReadRoute() {
    const int index = lua_absindex(lua_, -1);
    const std::string form = MustBe("style", "route");
    if (!IsTable(lua_, index)) return Bad(form);
    if (!CheckKeys(lua_, index, "route") || HoldsPoison(lua_, index)) {
      good_ = false;
      return;
    }
    lua_getfield(lua_, index, "of");
    lua_getfield(lua_, index, "ids");
    lua_getfield(lua_, index, "weights");
    const std::optional<std::string> of = StringAt(lua_, -3);
    const std::optional<int64_t> ids = IntegerAt(lua_, -2);
    const std::optional<int64_t> weights = IntegerAt(lua_, -1);
    if (!IsAllowed(lua_, -3, KeyOf("route", "of")) || !IsAllowed(lua_, -2, KeyOf("route", "ids")) ||
        !IsAllowed(lua_, -1, KeyOf("route", "weights")) || ids == weights) {
      return Bad(form, index);
    }
    style_.route = Route{of == "inputs", static_cast<int>(*ids) - 1, static_cast<int>(*weights) - 1};
  }

  void ReadExchange() {
    const int index = lua_absindex(lua_, -1);
    const std::string form = MustBe("style", "exchange");
    if (!IsTable(lua_, index)) return Bad(form);
    KeyReader keys(lua_, index, "exchange");
    const std::optional<int64_t> tokens = keys.Integer("tokens");
    const std::optional<int64_t> ids = keys.Integer("ids");
    const std::optional<int64_t> weights = keys.Integer("weights");
    const std::optional<int64_t> per_token = keys.Integer("per_token");
    const std::optional<int64_t> features = keys.Integer("features");
    const std::optional<double> capacity = keys.Number("capacity");
    const std::optional<int64_t> listed = keys.Integer("listed");
    if (!keys.good()) {
      good_ = false;
      return;
    }
    if (!tokens || !ids || !weights || !per_token || !features || tokens == ids || tokens == weights ||
        ids == weights || capacity == 0.0) {
      return Bad(form, index);
    }
    Exchange exchange;
    exchange.tokens = static_cast<int>(*tokens) - 1;
    exchange.ids = static_cast<int>(*ids) - 1;
    exchange.weights = static_cast<int>(*weights) - 1;
    exchange.per_token = *per_token;
    exchange.features = *features;
    exchange.capacity = capacity.value_or(0);
    exchange.listed = listed.value_or(0);
    style_.exchange = exchange;
  }

  void ReadRing() {
    const int index = lua_absindex(lua_, -1);
    const std::string form = MustBe("style", "ring");
    if (!IsTable(lua_, index)) return Bad(form);
    KeyReader keys(lua_, index, "ring");
    const std::optional<int64_t> heads = keys.Integer("heads");
    const std::optional<int64_t> kv_heads = keys.Integer("kv_heads");
    const std::optional<int64_t> window = keys.Integer("window");
    if (!keys.good()) {
      good_ = false;
      return;
    }
    if (!heads) return BadKey(index, "heads", "heads is missing in 'ring'");
    if (*heads % kv_heads.value_or(*heads) != 0) return BadKey(index, "kv_heads", "'kv_heads' must divide heads");
    style_.ring = Ring{*heads, kv_heads.value_or(*heads), window.value_or(0)};
  }

  lua_State* lua_;
  Style style_;
  bool good_ = true;
};

int MakeStyle(lua_State* L) {
  if (AnyPoison(L)) return PushPoison(L);
  if (!IsTable(L, 1)) return BadArgument(L, "style", "the argument must be a table, as in style { params = ... }", 1);
  StyleReader reader(L);
  return reader.Read() ? PushStyle(L, reader.Take()) : PushPoison(L);
}

bool FitsStyle(lua_State* L, int index, const std::string& type) {
  if (type == "any") return true;
  if (type == "layout") return LayoutAt(L, index) != nullptr;
  if (type == "integer") return IntegerAt(L, index).has_value();
  if (type == "table") return IsTable(L, index);
  std::string own = luaL_typename(L, index);
  if (luaL_getmetafield(L, index, "__name") != LUA_TNIL) {
    own = lua_tostring(L, -1);
    lua_pop(L, 1);
  }
  return type == own;
}

constexpr std::string_view kNow = "now ";  // before another name, as a type of takes: the key is an old name

// "towers=whole": a value of a key that has another name now.
bool IsValue(const std::string& key) { return key.find('=') != std::string::npos; }

// Whether the table at `index` gives every key a type that FitsStyle supports; reports the others.
bool CheckTypes(lua_State* L, int index, const std::vector<std::string>& keys) {
  const std::string known[] = {"any",     "boolean", "function", "integer", "layout", "number",
                               "pattern", "plan",    "rule",     "string",  "style",  "table"};
  bool good = true;
  for (const std::string& key : keys) {
    lua_getfield(L, index, key.c_str());
    std::optional<std::string> type = StringAt(L, -1);
    if (type && type->starts_with(kNeeded)) type->erase(0, kNeeded.size());
    if (type && type->starts_with(kNow) && (IsValue(key) || std::ranges::count(keys, type->substr(kNow.size())) > 0)) {
      lua_pop(L, 1);
      continue;
    }
    if (!type || std::ranges::find(known, *type) == std::end(known)) {
      SourceSpan where;
      if (type) where = ScriptState::From(L).UserSpanOfText(*type);
      std::string help = type ? DidYouMean(*type, known) : "one of: " + Join(known, ", ");
      if (type == "int") help = "did you mean 'integer'?";
      if (type == "bool") help = "did you mean 'boolean'?";
      if (type == "text" || type == "str") help = "did you mean 'string'?";
      BadArgument(L, "takes", "'" + key + "' has an unknown type", -1, where, help);
      lua_pop(L, 1);
      good = false;
    }
    lua_pop(L, 1);
  }
  return good;
}

// What the types of takes, or without them the records of the builtin `name`, declare of one key.
struct DeclaredKey {
  std::string key;
  std::string type;               // of takes
  const KeyInfo* info = nullptr;  // of a builtin
  bool required = false;
};

// The keys that the table at `index` declares, sorted; false, reported, where one of them is not a name with a type.
bool ReadDeclaredKeys(lua_State* L, int index, std::vector<DeclaredKey>& keys) {
  PushSortedKeys(L, index);
  const int sorted = lua_gettop(L);
  std::vector<std::string> names;
  for (lua_Integer i = 1; lua_rawgeti(L, sorted, i) != LUA_TNIL; ++i, lua_pop(L, 1)) {
    const std::optional<std::string> key = StringAt(L, -1);
    if (!key) {
      BadArgument(L, "takes", "the keys of the third argument must be strings", -1);
      return false;
    }
    names.push_back(*key);
  }
  lua_settop(L, sorted - 1);
  if (!CheckTypes(L, index, names)) return false;
  for (const std::string& name : names) {
    lua_getfield(L, index, name.c_str());
    DeclaredKey key{name, *StringAt(L, -1)};
    key.required = key.type.starts_with(kNeeded);
    if (key.required) key.type.erase(0, kNeeded.size());
    keys.push_back(std::move(key));
    lua_pop(L, 1);
  }
  return true;
}

// Old names in the table at 2 are reported, and give way to the new ones: of keys (type "now new"), and of values (key
// "key=old", type "now new"). What the table has under the new name already stays.
void RenameOld(lua_State* L, const std::string& name, std::vector<DeclaredKey>& keys) {
  ScriptState& state = ScriptState::From(L);
  for (const DeclaredKey& key : keys) {
    if (!key.type.starts_with(kNow)) continue;
    const std::string now = key.type.substr(kNow.size());
    const size_t equals = key.key.find('=');
    const std::string field = key.key.substr(0, equals);
    lua_getfield(L, 2, field.c_str());
    if (equals != std::string::npos) {
      const std::string old = key.key.substr(equals + 1);
      if (StringAt(L, -1) == old) {
        ReportOldName(state, "value \"" + old + "\" of '" + field + "' is now \"" + now + "\"",
                      state.UserSpanOfText(old));
        lua_pushstring(L, now.c_str());
        lua_setfield(L, 2, field.c_str());
      }
    } else if (!lua_isnil(L, -1)) {
      const SourceSpan call = state.UserSpan();
      ReportOldName(state, "'" + field + "' of '" + name + "' is now called '" + now + "'",
                    state.sources().SpanOfKey(call.file, call.line, field));
      if (lua_getfield(L, 2, now.c_str()) == LUA_TNIL) {
        lua_pushvalue(L, -2);
        lua_setfield(L, 2, now.c_str());
      }
      lua_pushnil(L);
      lua_setfield(L, 2, field.c_str());
    }
    lua_settop(L, 3);
  }
  std::erase_if(keys, [](const DeclaredKey& key) { return key.type.starts_with(kNow); });
}

// takes(name, given [, { key = type }]): the table `given`, checked. The keys of a style function of the language are
// in the table of builtins; another function declares its own.
int Takes(lua_State* L) {
  if (AnyPoison(L)) return PushPoison(L);
  const std::optional<std::string> name = StringAt(L, 1);
  const bool records = name && lua_isnoneornil(L, 3) && !KeysOf(*name).empty();
  if (!name || !(records || IsTable(L, 3))) {
    return !name ? BadArgument(L, "takes", "the first argument must be the name of the style function", 1)
                 : BadArgument(L, "takes", "the third argument must be a table of the keys with their types", 3);
  }
  lua_settop(L, 3);
  if (lua_isnil(L, 2)) {
    lua_newtable(L);
    lua_replace(L, 2);
  }
  std::vector<DeclaredKey> keys;
  for (const KeyInfo& info : records ? KeysOf(*name) : std::span<const KeyInfo>())
    keys.push_back({info.key, "", &info});
  const bool typed = records || ReadDeclaredKeys(L, 3, keys);
  lua_settop(L, 3);
  if (!IsTable(L, 2)) {
    const ScriptState::BlameCaller blame(ScriptState::From(L));
    const std::string example = keys.empty() ? "" : " " + keys.front().key + " = ... ";
    return BadArgument(L, *name, "the argument must be a table, as in " + *name + " {" + example + "}", 2);
  }
  if (!typed) return PushPoison(L);
  const ScriptState::BlameCaller blame(ScriptState::From(L));
  RenameOld(L, *name, keys);
  std::vector<std::string> names;
  for (const DeclaredKey& key : keys) names.push_back(key.key);
  bool good = CheckKeys(L, 2, *name, names, false) && !HoldsPoison(L, 2);
  for (const DeclaredKey& key : keys) {
    lua_getfield(L, 2, key.key.c_str());
    const bool given = lua_toboolean(L, -1) != 0 && !IsPoison(L, -1);
    const bool fits = key.info != nullptr ? IsAllowed(L, -1, *key.info) : FitsStyle(L, -1, key.type);
    if ((given && !fits) || (key.required && lua_isnil(L, -1))) {
      const bool vowel = key.type.find_first_of("aeiou") == 0;
      BadArgument(L, *name,
                  key.info != nullptr ? MustBe(*name, key.key)
                                      : "'" + key.key + "' must be " + (vowel ? "an " : "a ") + key.type,
                  -1);
      good = false;
    }
    lua_settop(L, 3);
  }
  if (!good) return PushPoison(L);
  lua_pushvalue(L, 2);
  return 1;
}

}  // namespace

void AddStyleBuiltins(lua_State* L) {
  lua_pushcfunction(L, &Guarded<&MakeStyle>);
  SetName(L, "style");
  lua_pushcfunction(L, &Guarded<&Takes>);
  SetName(L, "takes");
}

}  // namespace moonshard
