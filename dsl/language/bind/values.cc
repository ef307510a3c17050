#include "dsl/language/bind/values.h"

namespace moonshard {
namespace {

std::string TextOf(const Placement& v) { return v.ToText(); }
std::string TextOf(const Style& v) { return ToText(v); }
std::string TextOf(const Rule& v) { return "at(\"" + v.pattern + "\")"; }
std::string TextOf(const PatternValue& v) {
  return (v.syntax == PatternSyntax::kRegex ? "re\"" : "numbered\"") + v.text + "\"";
}
std::string TextOf(const AssertionValue& v) { return v.text; }
std::string TextOf(const DefaultValue& v) { return "default(" + v.style.name + ")"; }
std::string TextOf(const DataParallel& v) { return ToText(v); }
std::string TextOf(const Recomputed& v) { return ToText(v); }
std::string TextOf(const Precision& v) { return ToText(v); }
std::string TextOf(const KeptDType& v) { return ToText(v); }
std::string TextOf(const Adapter& v) { return ToText(v); }
std::string TextOf(const OperatorLike& v) { return ToText(v); }
std::string TextOf(const Plan& v) { return "plan " + v.name; }
std::string TextOf(const ConfigValue& v) { return v.path.empty() ? "config" : "config." + v.path; }
std::string TextOf(const MeshValue&) { return "mesh"; }
std::string TextOf(const ModelValue&) { return "model"; }

template <class T>
int AnswerText(lua_State* L) {
  const T* value = Userdata<T>::To(L, 1);
  const std::string text = value != nullptr ? TextOf(*value) : "?";
  lua_pushlstring(L, text.data(), text.size());
  return 1;
}

template <class T>
int AnswerEqual(lua_State* L) {
  const T* a = Userdata<T>::To(L, 1);
  const T* b = Userdata<T>::To(L, 2);
  bool equal = a != nullptr && b != nullptr;
  if constexpr (requires { *a == *b; }) {
    equal = equal && *a == *b;
  } else {
    equal = equal && TextOf(*a) == TextOf(*b);
  }
  lua_pushboolean(L, equal);
  return 1;
}

template <class T>
void RegisterValue(lua_State* L, const char* name) {
  Userdata<T>::Register(L, name);
  lua_pushcfunction(L, &Guarded<&AnswerText<T>>);
  lua_setfield(L, -2, "__tostring");
  lua_pushcfunction(L, &Guarded<&AnswerEqual<T>>);
  lua_setfield(L, -2, "__eq");
  lua_pop(L, 1);
}

size_t HeldBy(const std::vector<std::optional<Redistribution>>& redistributions) {
  size_t held = redistributions.capacity() * sizeof(std::optional<Redistribution>);
  for (const std::optional<Redistribution>& move : redistributions) {
    if (move) held += HeldBy(move->from) + HeldBy(move->to);
  }
  return held;
}

size_t HeldBy(const std::map<std::string, Placement>& params) {
  size_t held = 0;
  for (const auto& [name, placement] : params) held += 64 + name.size() + sizeof(Placement) + HeldBy(placement);
  return held;
}

}  // namespace

size_t HeldBy(const Placement& placement) {
  size_t held = 0;
  for (const Layout& layout : placement.by_axis) held += layout.parts.capacity() * sizeof(Layout::Part);
  return held;
}

size_t HeldBy(const Style& style) {
  size_t held = style.name.size() + HeldBy(style.params) + HeldBy(style.inputs) + HeldBy(style.outputs);
  held += HeldBy(style.vectors) + style.missing.size();
  for (const auto& [kind, params] : style.kinds) held += 128 + kind.size() + HeldBy(params);
  for (const KindStyle& own : style.kind_styles) held += sizeof(KindStyle) + own.kind.size() + HeldBy(own.style);
  for (const std::string& name : style.after) held += sizeof(std::string) + name.size();
  return held;
}

size_t HeldBy(const Rule& rule) {
  return rule.pattern.size() + HeldBy(rule.style) + rule.source.file.size() + rule.source.text.size();
}

void RegisterValues(lua_State* L) {
  RegisterValue<Placement>(L, "layout");
  RegisterValue<Style>(L, "style");
  RegisterValue<Rule>(L, "rule");
  RegisterValue<PatternValue>(L, "pattern");
  RegisterValue<AssertionValue>(L, "assertion");
  RegisterValue<DefaultValue>(L, "default");
  RegisterValue<DataParallel>(L, "section");
  RegisterValue<Recomputed>(L, "recompute section");
  RegisterValue<Precision>(L, "precision section");
  RegisterValue<KeptDType>(L, "keep_dtype section");
  RegisterValue<Adapter>(L, "lora section");
  RegisterValue<OperatorLike>(L, "operator_like section");
  RegisterValue<Plan>(L, "plan");
  RegisterValue<ConfigValue>(L, "config");
  RegisterValue<MeshValue>(L, "mesh");
  RegisterValue<ModelValue>(L, "model");
}

int PushLayout(lua_State* L, Placement placement) {
  const size_t held = HeldBy(placement);
  Userdata<Placement>::Push(L, std::move(placement), held);
  return 1;
}

int PushStyle(lua_State* L, Style style) {
  const size_t held = HeldBy(style);
  Userdata<Style>::Push(L, std::move(style), held);
  return 1;
}

int PushRule(lua_State* L, Rule rule) {
  const size_t held = HeldBy(rule);
  Userdata<Rule>::Push(L, std::move(rule), held);
  return 1;
}

int PushJson(lua_State* L, const JsonValue& json, const std::string& path) {
  if (json.is_null()) {
    lua_pushnil(L);
  } else if (json.is_bool()) {
    lua_pushboolean(L, json.AsBool());
  } else if (json.is_int()) {
    lua_pushinteger(L, json.AsInt());
  } else if (json.is_double()) {
    lua_pushnumber(L, json.AsDouble());
  } else if (json.is_string()) {
    lua_pushlstring(L, json.AsString().data(), json.AsString().size());
  } else {
    Userdata<ConfigValue>::Push(L, {&json, path}, path.size());
  }
  return 1;
}

}  // namespace moonshard
