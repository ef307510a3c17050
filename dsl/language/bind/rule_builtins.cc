// at, re, numbered, optional, default, divides, fits.
#include <algorithm>

#include "dsl/language/bind/arguments.h"
#include "dsl/language/bind/evaluation.h"
#include "dsl/language/bind/values.h"
#include "dsl/language/sandbox/environment.h"
#include "engine/core/base/text.h"
#include "engine/layout/shards.h"

namespace moonshard {
namespace {

constexpr size_t kMostAlternatives = 8;  // of a pattern that a message writes
constexpr size_t kMostDivisors = 16;     // named in a message
constexpr int64_t kMostLegal = 1 << 15;  // axis sizes looked at for one

// The argument after the pattern as source text: "colwise { ... }", "shard(0)", "style" where there is none.
std::string WrittenStyle(lua_State* L, int index) {
  if (const Style* style = Userdata<Style>::To(L, index)) {
    const bool plain = style->name == "replicated" && style->inputs.empty() && style->outputs.empty();
    return style->name + (plain ? " {}" : " { ... }");
  }
  if (const Placement* layout = LayoutAt(L, index)) return layout->ToText();
  return "style";
}

// The strings of the list at `index` as one pattern with braces around the parts in which they differ. "" where they
// are not strings, or contain braces.
std::string AsBraces(lua_State* L, int index) {
  std::vector<std::string> texts;
  for (const lua_Integer i : PositionsOf(L, index)) {
    lua_rawgeti(L, index, i);
    const std::optional<std::string> text = StringAt(L, -1);
    lua_pop(L, 1);
    if (!text || text->empty() || text->find_first_of("{},") != std::string::npos) return "";
    texts.push_back(*text);
  }
  if (texts.empty() || texts.size() > kMostAlternatives) return "";
  if (texts.size() == 1) return texts.front();
  const auto shared = [&](auto at) {
    size_t size = 0;
    while (std::ranges::all_of(texts, [&](const std::string& text) {
      return size < text.size() && size < texts.front().size() && at(text, size) == at(texts.front(), size);
    })) {
      ++size;
    }
    return size;
  };
  const size_t shortest = std::ranges::min(texts, {}, &std::string::size).size();
  size_t before = shared([](const std::string& text, size_t i) { return text[i]; });
  while (before > 0 && texts.front()[before - 1] != '.') --before;
  size_t after = shared([](const std::string& text, size_t i) { return text[text.size() - 1 - i]; });
  after = std::min(after, shortest - before);
  const std::string head = texts.front().substr(0, before);
  const std::string tail = texts.front().substr(texts.front().size() - after);
  for (std::string& text : texts) text = text.substr(before, text.size() - before - after);
  return head + "{" + Join(texts, ",") + "}" + tail;
}

bool ReadPattern(lua_State* L, int index, Rule& rule) {
  if (const PatternValue* pattern = Userdata<PatternValue>::To(L, index)) {
    rule.pattern = pattern->text;
    rule.syntax = pattern->syntax;
    return true;
  }
  if (const std::optional<std::string> text = StringAt(L, index)) {
    rule.pattern = *text;
    return true;
  }
  const char* const what = "the pattern must be a string, numbered\"...\" or re\"...\"";
  std::string help = "the first argument is the pattern: at(\"lm_head\", " + WrittenStyle(L, index + 1) + ")";
  if (const std::optional<std::string> second = StringAt(L, index + 1); second && !second->empty()) {
    help = "the arguments are swapped: at(\"" + *second + "\", " + WrittenStyle(L, index) + ")";
  } else if (IsTable(L, index) && lua_gettop(L) == index) {
    lua_rawgeti(L, index, 1);
    lua_rawgeti(L, index, 2);
    help = "write the arguments in parentheses: at(" + (StringAt(L, -2) ? "\"" + *StringAt(L, -2) + "\"" : "pattern") +
           ", " + WrittenStyle(L, lua_gettop(L)) + ")";
    lua_settop(L, index);
  } else if (const std::string braces = IsTable(L, index) ? AsBraces(L, index) : ""; !braces.empty()) {
    help = "a rule has one pattern, with alternatives in braces: at(\"" + braces + "\", " + WrittenStyle(L, index + 1) +
           ")";
  } else if (IsTable(L, index)) {
    help = "a rule has one pattern; write one rule for each pattern";
  }
  BadArgument(L, "at", what, index, {}, help);
  return false;
}

// For a function in place of a style or a layout: how it is called.
std::string CalledAs(const BuiltinInfo* builtin) {
  if (builtin == nullptr) return "call it, as in colwise {}";
  const std::string name = builtin->name;
  const std::string result = ResultOf(*builtin);
  if (name == "norm_on" || name == "rotary_on") return "call it, as in " + name + "(replicate)";
  if (result == "style") return "call it, as in " + name + " {}";
  if (name == "shard") return "call it with the tensor dim, as in shard(0)";
  if (result == "layout") {
    const std::string signature = SignatureOf(*builtin);
    return "call it: " + signature.substr(0, signature.find(" -> "));
  }
  return "'" + name + "' does not return a style";
}

int At(lua_State* L) {
  if (AnyPoison(L)) return PushPoison(L);
  Rule rule;
  if (!ReadPattern(L, 1, rule)) return PushPoison(L);
  rule.source = ScriptState::From(L).UserSpanOfText(rule.pattern);
  if (const Style* style = Userdata<Style>::To(L, 2)) {
    rule.style = *style;
  } else if (const Placement* layout = LayoutAt(L, 2)) {
    rule.parameter = *layout;
  } else if (lua_type(L, 2) == LUA_TFUNCTION) {
    const BuiltinInfo* builtin = BuiltinOf(L, 2);
    const bool layout = builtin != nullptr && ResultOf(*builtin) == "layout";
    return BadArgument(L, "at", "'" + rule.pattern + "' needs a " + (layout ? "layout" : "style"), 2,
                       ScriptState::From(L).UserSpan(builtin != nullptr ? builtin->name : "at"), CalledAs(builtin));
  } else {
    const std::optional<std::string> text = StringAt(L, 2);
    return BadArgument(L, "at", "'" + rule.pattern + "' needs a style or a layout", 2,
                       text ? ScriptState::From(L).UserSpanOfText(*text) : rule.source, "");
  }
  if (!lua_isnoneornil(L, 3)) {
    if (!IsTable(L, 3)) return BadArgument(L, "at", "the third argument must be { optional = true }", 3);
    KeyReader keys(L, 3, "at");
    keys.Boolean("optional", rule.optional);
    if (!keys.good()) return PushPoison(L);
  }
  Evaluation::From(L).made_rules().Add(L, rule);
  return PushRule(L, std::move(rule));
}

int PushPattern(lua_State* L, const std::string& builtin, PatternSyntax syntax) {
  if (AnyPoison(L)) return PushPoison(L);
  const std::optional<std::string> text = StringAt(L, 1);
  if (!text || text->empty())
    return BadArgument(L, builtin, "the argument must be a string, as in " + builtin + "\"...\"", 1);
  Userdata<PatternValue>::Push(L, {*text, syntax}, text->size());
  return 1;
}

int Re(lua_State* L) { return PushPattern(L, "re", PatternSyntax::kRegex); }

int Numbered(lua_State* L) { return PushPattern(L, "numbered", PatternSyntax::kNumbered); }

// The rule, or the list of rules, with every rule allowed to match nothing.
int Optional(lua_State* L) {
  if (AnyPoison(L)) return PushPoison(L);
  if (const Rule* rule = Userdata<Rule>::To(L, 1)) {
    Rule copy = *rule;
    copy.optional = true;
    return PushRule(L, std::move(copy));
  }
  if (!IsTable(L, 1)) return BadArgument(L, "optional", "the argument must be a rule or a list of rules", 1);
  luaL_checkstack(L, 8, "lists nested too deeply");
  lua_settop(L, 1);
  lua_newtable(L);  // [list, result]
  lua_Integer count = 0;
  for (const lua_Integer i : PositionsOf(L, 1)) {
    lua_pushcfunction(L, &Guarded<&Optional>);
    lua_rawgeti(L, 1, i);
    if (lua_toboolean(L, -1) == 0) {
      lua_pop(L, 2);
      continue;
    }
    lua_call(L, 1, 1);
    lua_rawseti(L, 2, ++count);
  }
  return 1;
}

int Default(lua_State* L) {
  if (AnyPoison(L)) return PushPoison(L);
  const Style* style = Userdata<Style>::To(L, 1);
  if (style == nullptr) return BadArgument(L, "default", "the argument must be a style", 1);
  Userdata<DefaultValue>::Push(L, {*style, ScriptState::From(L).UserSpan("default")}, HeldBy(*style));
  return 1;
}

std::string DivisorsOf(int64_t number) {
  std::vector<std::string> divisors;
  for (int64_t d = 1; d <= number && d <= 65536 && divisors.size() < kMostDivisors; ++d) {
    if (number % d == 0) divisors.push_back(std::to_string(d));
  }
  return Join(divisors, ", ");
}

struct Sizes {
  int64_t size;
  int64_t number;
  std::string what;  // what the number counts; may be empty
};

// The arguments of divides and fits; nothing, reported, where one of them is another thing.
std::optional<Sizes> SizesAt(lua_State* L, const char* builtin) {
  const std::optional<int64_t> size = IntegerAt(L, 1);
  const std::optional<int64_t> number = IntegerAt(L, 2);
  const std::optional<std::string> what = lua_isnoneornil(L, 3) ? "" : StringAt(L, 3);
  if (!size || *size < 1)
    BadArgument(L, builtin, "the size must be a positive integer", 1);
  else if (!number || *number < 1)
    BadArgument(L, builtin, "the number must be a positive integer", 2);
  else if (!what)
    BadArgument(L, builtin, "the third argument must be a string", 3);
  else
    return Sizes{*size, *number, *what};
  return std::nullopt;
}

int Assertion(lua_State* L, const char* builtin, const Sizes& given, bool good, const std::string& fault,
              const std::string& required) {
  const std::string call =
      std::string(builtin) + "(" + std::to_string(given.size) + ", " + std::to_string(given.number) + ")";
  if (!good) {
    ScriptState& state = ScriptState::From(L);
    const std::string what = given.what.empty() ? "" : given.what + ": ";
    Diagnostic d = MakeDiagnostic(Finding::kDoesNotDivide, what + fault, state.UserSpan(builtin));
    d.declared = call;
    d.required = "one of " + required;
    state.Report(std::move(d));
  }
  Userdata<AssertionValue>::Push(L, {call}, call.size());
  return 1;
}

int Divides(lua_State* L) {
  if (AnyPoison(L)) return PushPoison(L);
  const std::optional<Sizes> given = SizesAt(L, "divides");
  if (!given) return 1;
  const auto [size, number, what] = *given;
  return Assertion(L, "divides", *given, number % size == 0,
                   std::to_string(size) + " does not divide " + std::to_string(number), DivisorsOf(number));
}

// Heads on an axis: several per rank, or each replicated on several ranks.
int Fits(lua_State* L) {
  if (AnyPoison(L)) return PushPoison(L);
  const std::optional<Sizes> given = SizesAt(L, "fits");
  if (!given) return 1;
  const auto [size, number, what] = *given;
  std::vector<std::string> legal;
  for (int64_t fitting : LegalAxisSizes(number, 2 * std::max(size, std::min(number, kMostLegal)))) {
    if (legal.size() < kMostDivisors) legal.push_back(std::to_string(fitting));
  }
  return Assertion(L, "fits", *given, number % size == 0 || size % number == 0,
                   std::to_string(number) + " is neither a multiple nor a divisor of " + std::to_string(size),
                   Join(legal, ", "));
}

}  // namespace

void AddRuleBuiltins(lua_State* L) {
  const std::vector<NamedFunction> builtins = {{"at", &Guarded<&At>},
                                               {"re", &Guarded<&Re>},
                                               {"numbered", &Guarded<&Numbered>},
                                               {"optional", &Guarded<&Optional>},
                                               {"default", &Guarded<&Default>},
                                               {"divides", &Guarded<&Divides>},
                                               {"fits", &Guarded<&Fits>}};
  for (const NamedFunction& builtin : builtins) {
    lua_pushcfunction(L, builtin.function);
    SetName(L, builtin.name);
  }
}

}  // namespace moonshard
