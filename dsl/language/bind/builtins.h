// Builtins: every name of the plan language and every key of the tables that these take, as one table. Argument
// checking (arguments.h), the REPL's help and completion, the definitions for editors and checkers and the reference
// page (dsl/language/reference) derive from it.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace moonshard {

struct BuiltinInfo {
  const char* name;   // "shard", "string.rep", "config:get"
  const char* group;  // heading in the reference
  // LuaCATS: "layout" for a value, "fun(dim: integer, keys?: shard_keys): layout" for a function; further forms, each
  // on a line, are overloads. A parameter of type NAME_keys is a table with the keys of KeysOf(NAME).
  const char* type;
  const char* doc;        // one line
  const char* example;    // a plan, or ""; a test evaluates it
  const char* form = "";  // the signature where the type does not show how the name is written in a plan
};

constexpr int64_t kNoMinimum = std::numeric_limits<int64_t>::min();
constexpr int64_t kNoMaximum = std::numeric_limits<int64_t>::max();

// A key of a table that a builtin takes. A test evaluates each with its default and with its example.
struct KeyInfo {
  const char* table;  // the builtin, "shard", or a key of one whose value is a table, "route"; in LuaCATS "shard_keys"
  const char* key;    // kPositional: the entries without a key
  const char* type;   // LuaCATS
  const char* fallback;          // the value without the key, in Lua; "": none
  const char* example;           // a value in Lua
  const char* doc;               // one line
  int64_t minimum = kNoMinimum;  // of integers
  int64_t maximum = kNoMaximum;
};
constexpr std::string_view kPositional = "[integer]";

// A LuaCATS type that is not one of Lua's: layout, style, rule and so on.
struct TypeInfo {
  const char* name;
  const char* doc;            // one line
  const char* literals = "";  // of a type that is one of some strings: "\"a\"|\"b\""
};

// A name or key that was renamed. A plan that uses the old name works as before, with a warning (kDeprecatedName) that
// gives the new one. `api` (plan { api = 1 }) changes only where a plan would mean something else.
struct DeprecatedName {
  const char* name;  // "column_wise"; a key with its table, "colwise.in_layout"; a value, "fsdp.accumulate=pieces"
  const char* replacement;  // "colwise", "input", "shards"
  const char* since;        // the version of moonshard that introduced the new name: "0.2"
};

// In the order of the reference: the plan, layouts, styles, sections, what a plan can see, Lua.
std::span<const BuiltinInfo> AllBuiltins();
// Null where there is no such name.
const BuiltinInfo* FindBuiltin(std::string_view name);
// How a plan writes it: "shard(dim [, { heads = integer, owner = integer }]) -> layout".
std::string SignatureOf(const BuiltinInfo& builtin);
// The type of the value, of a function that of its result: "layout".
std::string ResultOf(const BuiltinInfo& builtin);
// Whether it is called with one table of keys: colwise { ... }.
bool TakesOneTable(const BuiltinInfo& builtin);

// By table; within one in the order of the keys.
std::span<const KeyInfo> AllKeys();
// Empty where `table` is not one.
std::span<const KeyInfo> KeysOf(std::string_view table);
// The keys that have a name, sorted.
std::vector<std::string> KeyNames(std::string_view table);
// InternalError where there is no such key.
const KeyInfo& KeyOf(std::string_view table, std::string_view key);
// What a value of the key must be: "a positive integer", "\"mean\" or \"sum\"", "a layout".
std::string RequirementOf(const KeyInfo& key);
// The strings that a type allows: of `"mean"|"sum"`, and of a TypeInfo with literals, mean and sum.
std::vector<std::string> LiteralsOf(std::string_view type);

std::span<const TypeInfo> AllTypes();

std::span<const DeprecatedName> DeprecatedNames();
// The help text beside the new name.
std::string DeprecatedHelp(const DeprecatedName& name);

struct TypeParameter {
  std::string name;  // "...": any number of further arguments
  std::string type;
  bool optional = false;
};
struct FunctionType {
  bool is_function = false;
  std::vector<TypeParameter> parameters;
  std::string result;  // of a function, "" for none; else the type itself
};
// Reads one line of BuiltinInfo::type. InternalError where it has another form.
FunctionType ParseType(const std::string& type);

}  // namespace moonshard
