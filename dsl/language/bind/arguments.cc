#include "dsl/language/bind/arguments.h"

#include <algorithm>
#include <cmath>

#include "dsl/language/bind/evaluation.h"
#include "dsl/language/bind/values.h"
#include "dsl/language/sandbox/environment.h"
#include "engine/core/base/text.h"

namespace moonshard {

std::string Describe(lua_State* L, int index) {
  index = lua_absindex(L, index);
  switch (lua_type(L, index)) {
    case LUA_TNONE:
    case LUA_TNIL: return "nil";
    case LUA_TSTRING: {
      const std::string_view text = lua_tostring(L, index);
      return "'" + std::string(text.substr(0, 60)) + (text.size() > 60 ? "..." : "") + "'";
    }
    case LUA_TNUMBER:
    case LUA_TBOOLEAN: {
      PushText(L, index);
      std::string text = lua_tostring(L, -1);
      lua_pop(L, 1);
      return text;
    }
    default: break;
  }
  std::string name = luaL_typename(L, index);
  if (luaL_getmetafield(L, index, "__name") != LUA_TNIL) {
    name = lua_tostring(L, -1);
    lua_pop(L, 1);
  }
  return (name.find_first_of("aeiou") == 0 ? "an " : "a ") + name;
}

namespace {

bool IsBuiltin(std::string_view name, std::string_view result) {
  const BuiltinInfo* builtin = FindBuiltin(name);
  return builtin != nullptr && ResultOf(*builtin) == result;
}

// Help for common mistakes: a value in quotes, a function that is not called, the name of a dtype in another library.
// "" for other values.
std::string HelpFor(lua_State* L, const std::string& builtin, const std::string& what, int index) {
  const auto takes = [&](const char* part) { return what.find(part) != std::string::npos; };
  const std::optional<std::string> text = StringAt(L, index);
  if (text && takes("integer")) {
    const bool number = !text->empty() && std::ranges::all_of(*text, [](char c) { return c >= '0' && c <= '9'; });
    if (number) return "write " + *text + ", without quotes";
    if (MeshAxisFromName(*text)) return "mesh." + *text + " is the size of mesh axis " + *text;
  }
  if (text && takes("layout") && IsBuiltin(*text, "layout")) return "write " + *text + ", without quotes";
  if (text && takes("style")) {
    if (IsBuiltin(*text, "style")) return "write " + *text + " {}, without quotes";
    return "write a style without quotes, as in colwise {}; require \"hugging_face\" returns the styles of Hugging "
           "Face plans";
  }
  if (lua_isfunction(L, index) && takes("must be a layout")) {
    const BuiltinInfo* function = BuiltinOf(L, index);
    if (function != nullptr && std::string_view(function->name) == "shard") {
      return "call shard with a tensor dim: shard(-1) shards the last dim";
    }
    return "a layout is replicate, shared, partial, or the result of a call such as shard(-1)";
  }
  if (text && takes("must be \"float32\"")) {
    constexpr std::pair<std::string_view, const char*> kShort[] = {
        {"bf16", "bfloat16"}, {"double", "float64"}, {"f16", "float16"},  {"f32", "float32"},  {"f64", "float64"},
        {"float", "float32"}, {"fp16", "float16"},   {"fp32", "float32"}, {"fp64", "float64"}, {"half", "float16"}};
    const std::string name = text->starts_with("torch.") ? text->substr(6) : *text;
    for (const auto& [given, nearest] : kShort) {
      if (name == given) return std::string("did you mean \"") + nearest + "\"?";
    }
    if (what.find("\"" + name + "\"") != std::string::npos) return "did you mean \"" + name + "\"?";
  }
  if (lua_isnoneornil(L, index) && (builtin == "norm_on" || builtin == "rotary_on")) {
    return "write " + builtin + "(replicate), or " + builtin + "(shard(1)) under sequence parallelism";
  }
  if (takes("the pattern must be")) return "write model:" + builtin + "(\"model.layers.*\")";
  return "";
}

}  // namespace

const BuiltinInfo* BuiltinOf(lua_State* L, int index) {
  index = lua_absindex(L, index);
  if (!lua_isfunction(L, index)) return nullptr;
  PushEnvironment(L);
  for (const BuiltinInfo& info : AllBuiltins()) {
    if (std::string_view(info.name).find_first_of(".:") != std::string_view::npos) continue;
    lua_getfield(L, -1, info.name);
    const bool same = lua_rawequal(L, -1, index) != 0;
    lua_pop(L, 1);
    if (!same) continue;
    lua_pop(L, 1);
    return &info;
  }
  lua_pop(L, 1);
  return nullptr;
}

void ReportOldName(ScriptState& state, const std::string& message, const SourceSpan& where) {
  Diagnostic d = MakeDiagnostic(Finding::kDeprecatedName, message, where);
  d.help = "a later version removes the old name";
  state.Report(std::move(d));
}

int BadArgument(lua_State* L, const std::string& builtin, const std::string& what, int index) {
  return BadArgument(L, builtin, what, index, {}, "");
}

int BadArgument(lua_State* L, const std::string& builtin, const std::string& what, int index, SourceSpan where,
                std::string help) {
  ScriptState& state = ScriptState::From(L);
  // The caret goes under the key that `what` names, else under the builtin.
  const size_t open = what.find('\'');
  const size_t close = open == std::string::npos ? open : what.find('\'', open + 1);
  if (where.column == 0 && close != std::string::npos) {
    std::string key = what.substr(open + 1, close - open - 1);
    key = key.substr(key.rfind('.') + 1);
    where = state.UserSpan(key);
    // The key may be on a later line of the same table.
    if (where.column == 0 && !lua_isnoneornil(L, index)) {
      where = state.sources().SpanOfKey(where.file, where.line, key);
    }
  }
  if (where.column == 0) where = state.UserSpan(builtin);
  Diagnostic d = MakeDiagnostic(Finding::kBadArgument, builtin + ": " + what + ", got " + Describe(L, index), where);
  d.help = help.empty() ? HelpFor(L, builtin, what, index) : std::move(help);
  state.Report(std::move(d));
  return PushPoison(L);
}

std::optional<int64_t> IntegerAt(lua_State* L, int index) {
  if (lua_type(L, index) != LUA_TNUMBER) return std::nullopt;
  int full = 0;
  const lua_Integer value = lua_tointegerx(L, index, &full);
  return full != 0 ? std::optional<int64_t>(value) : std::nullopt;
}

std::optional<std::string> StringAt(lua_State* L, int index) {
  if (lua_type(L, index) != LUA_TSTRING) return std::nullopt;
  size_t size = 0;
  const char* text = lua_tolstring(L, index, &size);
  return std::string(text, size);
}

const Placement* LayoutAt(lua_State* L, int index) { return Userdata<Placement>::To(L, index); }

bool IsTable(lua_State* L, int index) { return lua_type(L, index) == LUA_TTABLE; }

namespace {

// Help for a key that `builtin` does not have; its value is on top of the stack.
std::string HelpForKey(lua_State* L, const std::string& builtin, const std::string& key,
                       std::span<const std::string> keys) {
  if (builtin == "plan" && Userdata<Style>::To(L, -1) != nullptr) return "write at(\"" + key + "\", style)";
  if (builtin == "plan" && IsBuiltin(key, "plan")) return "write " + key + " \"llama\", without the equals sign";
  constexpr std::array<std::string_view, 5> kSections = {"ddp", "fsdp", "lora", "precision", "recompute"};
  if (builtin == "plan" && std::ranges::find(kSections, key) != kSections.end()) {
    return "write " + key + " { ... }, without the equals sign";
  }
  if (key == "optional" && std::ranges::find(keys, key) == keys.end()) {
    return "'optional' is a key of the rule: at(pattern, style, { optional = true })";
  }
  // A name of PyTorch or Hugging Face, or a key with a suffix, such as output_layouts.
  constexpr std::pair<std::string_view, std::string_view> kForeign[] = {{"cast_forward_inputs", "cast_inputs"},
                                                                        {"desired_input_layouts", "input"},
                                                                        {"lora_alpha", "alpha"},
                                                                        {"lora_dropout", "dropout"},
                                                                        {"n_heads", "heads"},
                                                                        {"num_heads", "heads"},
                                                                        {"output_dtype", "outputs"},
                                                                        {"param_dtype", "parameters"},
                                                                        {"r", "rank"},
                                                                        {"target_modules", "at"},
                                                                        {"use_rslora", "rslora"},
                                                                        {"version", "api"}};
  for (const std::string& known : keys) {
    const bool foreign =
        std::ranges::find(kForeign, std::pair<std::string_view, std::string_view>(key, known)) != std::end(kForeign);
    if (foreign || key.starts_with(known + "_")) return "did you mean '" + known + "'?";
  }
  return DidYouMean(key, keys);
}

// A deprecated key: reports it and, unless the new key is also present, assigns its value to the new key.
bool TakeDeprecatedKey(lua_State* L, int index, const std::string& builtin, const std::string& key) {
  const std::string name = builtin + "." + key;
  for (const DeprecatedName& deprecated : Evaluation::From(L).inputs().deprecated) {
    if (name != deprecated.name) continue;
    ScriptState& state = ScriptState::From(L);
    const SourceSpan call = state.UserSpan();
    Diagnostic d = MakeDiagnostic(Finding::kDeprecatedName,
                                  "'" + key + "' of '" + builtin + "' is now called '" + deprecated.replacement + "'",
                                  state.sources().SpanOfKey(call.file, call.line, key));
    d.help = DeprecatedHelp(deprecated);
    state.Report(std::move(d));
    lua_getfield(L, index, key.c_str());
    if (lua_getfield(L, index, deprecated.replacement) == LUA_TNIL) {
      lua_pushvalue(L, -2);
      lua_setfield(L, index, deprecated.replacement);
    }
    lua_pop(L, 2);
    lua_pushnil(L);
    lua_setfield(L, index, key.c_str());
    return true;
  }
  return false;
}

}  // namespace

bool CheckKeys(lua_State* L, int index, const std::string& builtin, std::span<const std::string> keys,
               bool positional) {
  index = lua_absindex(L, index);
  ScriptState& state = ScriptState::From(L);
  PushSortedKeys(L, index);
  const int sorted = lua_gettop(L);
  bool good = true;
  for (lua_Integer i = 1; lua_rawgeti(L, sorted, i) != LUA_TNIL; ++i, lua_pop(L, 1)) {
    const bool named = lua_type(L, -1) == LUA_TSTRING;
    if (!named && positional && lua_isinteger(L, -1) != 0) continue;
    PushText(L, -1);
    const std::string key = lua_tostring(L, -1);
    lua_pop(L, 1);
    if (named && std::ranges::find(keys, key) != keys.end()) continue;
    if (named && TakeDeprecatedKey(L, index, builtin, key)) continue;
    good = false;
    if (named) {
      const SourceSpan call = state.UserSpan();
      // A name with blanks, such as "a list of rules", describes the table and is not quoted.
      const std::string table = builtin.find(' ') == std::string::npos ? "'" + builtin + "'" : builtin;
      Diagnostic d = MakeDiagnostic(Finding::kUnknownKey, table + " has no key '" + key + "'",
                                    state.sources().SpanOfKey(call.file, call.line, key));
      lua_getfield(L, index, key.c_str());
      d.help = HelpForKey(L, builtin, key, keys);
      lua_pop(L, 1);
      state.Report(std::move(d));
    } else {
      state.Report(Finding::kUnknownKey, "each entry of '" + builtin + "' must have the form key = value", builtin,
                   keys.empty() ? "" : "the keys are " + Join(keys, ", "));
    }
  }
  lua_settop(L, sorted - 1);
  return good;
}

bool CheckKeys(lua_State* L, int index, const std::string& table) {
  const bool positional = std::ranges::any_of(KeysOf(table), [](const KeyInfo& key) { return key.key == kPositional; });
  return CheckKeys(L, index, table, KeyNames(table), positional);
}

bool CheckList(lua_State* L, int index, const std::string& what) { return CheckKeys(L, index, what, {}, true); }

bool HoldsPoison(lua_State* L, int index) {
  index = lua_absindex(L, index);
  for (lua_pushnil(L); lua_next(L, index) != 0; lua_pop(L, 1)) {
    if (IsPoison(L, -1)) {
      lua_pop(L, 2);
      return true;
    }
  }
  return false;
}

std::vector<lua_Integer> PositionsOf(lua_State* L, int index) {
  index = lua_absindex(L, index);
  std::vector<lua_Integer> positions;
  for (lua_pushnil(L); lua_next(L, index) != 0; lua_pop(L, 1)) {
    if (lua_isinteger(L, -2) != 0 && lua_tointeger(L, -2) > 0) positions.push_back(lua_tointeger(L, -2));
  }
  ScriptState::From(L).Charge(positions.size());
  std::ranges::sort(positions);
  return positions;
}

std::string MustBe(const std::string& table, const std::string& key) {
  return "'" + key + "' must be " + RequirementOf(KeyOf(table, key));
}

bool IsAllowed(lua_State* L, int index, const KeyInfo& key) {
  for (const std::string& type : Split(key.type, '|')) {
    if (type == "boolean" && lua_isboolean(L, index)) return true;
    if (type == "false" && lua_isboolean(L, index) && lua_toboolean(L, index) == 0) return true;
    if (type == "layout" && LayoutAt(L, index) != nullptr) return true;
    if (type == "integer") {
      const std::optional<int64_t> value = IntegerAt(L, index);
      if (value && *value >= key.minimum && *value <= key.maximum) return true;
    }
    if (type == "number" && lua_type(L, index) == LUA_TNUMBER) {
      const lua_Number value = lua_tonumber(L, index);
      const auto least = static_cast<lua_Number>(key.minimum);
      const bool fits =
          key.maximum == kNoMaximum ? value > least : value >= least && value < static_cast<lua_Number>(key.maximum);
      if (fits && std::isfinite(value)) return true;
    }
    const std::optional<std::string> text = StringAt(L, index);
    if (text && type == "string" && !text->empty()) return true;
    if (text && std::ranges::count(LiteralsOf(type), *text) > 0) return true;
  }
  return false;
}

KeyReader::KeyReader(lua_State* L, int index, std::string table, std::string builtin)
    : lua_(L),
      index_(lua_absindex(L, index)),
      table_(std::move(table)),
      builtin_(builtin.empty() ? table_ : std::move(builtin)) {
  good_ = CheckKeys(lua_, index_, table_) && !HoldsPoison(lua_, index_);
}

bool KeyReader::Push(const char* key) {
  if (lua_getfield(lua_, index_, key) != LUA_TNIL) return true;
  lua_pop(lua_, 1);
  return false;
}

void KeyReader::Bad(const char* key) {
  BadArgument(lua_, builtin_, MustBe(table_, key), -1);
  lua_pop(lua_, 1);
  good_ = false;
}

void KeyReader::Boolean(const char* key, bool& value) {
  if (!Push(key)) return;
  if (!IsAllowed(lua_, -1, KeyOf(table_, key))) {
    Bad(key);
  } else {
    value = lua_toboolean(lua_, -1) != 0;
  }
  lua_pop(lua_, 1);
}

std::optional<int64_t> KeyReader::Integer(const char* key) {
  if (!Push(key)) return std::nullopt;
  std::optional<int64_t> value;
  if (IsAllowed(lua_, -1, KeyOf(table_, key))) {
    value = IntegerAt(lua_, -1);
  } else {
    Bad(key);
  }
  lua_pop(lua_, 1);
  return value;
}

std::optional<double> KeyReader::Number(const char* key) {
  if (!Push(key)) return std::nullopt;
  std::optional<double> value;
  if (IsAllowed(lua_, -1, KeyOf(table_, key))) {
    value = lua_tonumber(lua_, -1);
  } else {
    Bad(key);
  }
  lua_pop(lua_, 1);
  return value;
}

std::optional<std::string> KeyReader::Text(const char* key) {
  if (!Push(key)) return std::nullopt;
  std::optional<std::string> value = StringAt(lua_, -1);
  for (const DeprecatedName& deprecated : Evaluation::From(lua_).inputs().deprecated) {
    if (!value || deprecated.name != table_ + "." + key + "=" + *value) continue;
    ScriptState& state = ScriptState::From(lua_);
    Diagnostic d = MakeDiagnostic(Finding::kDeprecatedName,
                                  "value \"" + *value + "\" of '" + key + "' is now \"" + deprecated.replacement + "\"",
                                  state.UserSpanOfText(*value));
    d.help = DeprecatedHelp(deprecated);
    state.Report(std::move(d));
    value = deprecated.replacement;
  }
  const KeyInfo& info = KeyOf(table_, key);
  const std::vector<std::string> literals = LiteralsOf(info.type);
  const bool allowed = literals.empty() ? value && !value->empty() : value && std::ranges::count(literals, *value) > 0;
  if (!allowed) {
    value.reset();
    Bad(key);
  }
  lua_pop(lua_, 1);
  return value;
}

}  // namespace moonshard
