// Builtins: the records of all names of the plan language, and of all keys of the tables that builtins take. Argument
// checking (arguments.h), the REPL's help and completion, the definitions for editors and checkers, and the reference
// page (dsl/language/reference) derive from these records.
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
  // The LuaCATS type: "layout" for a value, "fun(dim: integer, keys?: shard_keys): layout" for a function. Each further
  // line is an overload. A parameter of type NAME_keys is a table with the keys of KeysOf(NAME).
  const char* type;
  const char* doc;        // one line
  const char* example;    // a plan, which a test evaluates, or ""
  const char* form = "";  // the signature, if the type does not show how a plan writes the name; else ""
};

constexpr int64_t kNoMinimum = std::numeric_limits<int64_t>::min();
constexpr int64_t kNoMaximum = std::numeric_limits<int64_t>::max();

// A key of a table that a builtin takes. A test evaluates each key with its default and with its example.
struct KeyInfo {
  // The record table to which the key belongs, named after the builtin ("shard") or after the key ("route") whose value
  // is the table. The LuaCATS class has the suffix _keys: "shard_keys".
  const char* table;
  const char* key;       // kPositional for the entries without a key
  const char* type;      // the LuaCATS type of the value
  const char* fallback;  // the default in Lua; "" for no default
  const char* example;   // a value in Lua
  const char* doc;       // one line
  // Of an integer: inclusive. Of a number: it must be above `minimum`, or, with a maximum, at least `minimum` and below
  // `maximum`.
  int64_t minimum = kNoMinimum;
  int64_t maximum = kNoMaximum;
};
constexpr std::string_view kPositional = "[integer]";

// A LuaCATS type of the plan language: layout, style, rule and so on.
struct TypeInfo {
  const char* name;
  const char* doc;            // one line
  const char* literals = "";  // for a type with a fixed set of strings: "\"a\"|\"b\""
};

// A renamed name, key or value. A plan that uses the old name works as before, with a warning (kDeprecatedName) that
// gives the new name. The version `api` (plan { api = 1 }) changes only when the meaning of existing plans changes.
struct DeprecatedName {
  const char* name;         // "column_wise"; a key: "colwise.in_layout"; a value: "fsdp.accumulate=pieces"
  const char* replacement;  // "colwise", "input", "shards"
  const char* since;        // the version of moonshard that introduced the new name: "0.2"
};

// All builtins in the order of the reference: the plan, layouts, styles, sections, inputs of a plan, Lua.
std::span<const BuiltinInfo> AllBuiltins();
// Returns the builtin `name`; null if there is no such name.
const BuiltinInfo* FindBuiltin(std::string_view name);
// Returns the signature of the builtin:
// "shard(dim [, { heads = integer, owner = integer, zigzag = boolean }]) -> layout".
std::string SignatureOf(const BuiltinInfo& builtin);
// Returns the result type of a function, or the type of a value that is no function: "layout" for shard and for
// replicate.
std::string ResultOf(const BuiltinInfo& builtin);
// Returns whether the builtin is called with one table of keys: colwise { ... }.
bool TakesOneTable(const BuiltinInfo& builtin);

// All keys, sorted by table and then by key.
std::span<const KeyInfo> AllKeys();
// Returns the keys of the record table `table`; empty if there is no such table.
std::span<const KeyInfo> KeysOf(std::string_view table);
// Returns the names of the keys of `table`, without the positional entries, sorted.
std::vector<std::string> KeyNames(std::string_view table);
// Returns the record of a key. Throws InternalError if there is no such key.
const KeyInfo& KeyOf(std::string_view table, std::string_view key);
// Returns the requirement for a value of the key: "a positive integer", "\"mean\" or \"sum\"", "a layout".
std::string RequirementOf(const KeyInfo& key);
// Returns the strings that a type allows, without quotes: mean and sum for the type `"mean"|"sum"`. If `type` is the
// name of a TypeInfo, returns the literals of that TypeInfo.
std::vector<std::string> LiteralsOf(std::string_view type);

std::span<const TypeInfo> AllTypes();

std::span<const DeprecatedName> DeprecatedNames();
// Returns the help text for a use of the old name: in which version the name changed, and that a later version removes
// the old name.
std::string DeprecatedHelp(const DeprecatedName& name);

struct TypeParameter {
  std::string name;  // "..." for any number of further arguments
  std::string type;
  bool optional = false;
};
struct FunctionType {
  bool is_function = false;
  std::vector<TypeParameter> parameters;
  std::string result;  // if is_function, the type of the result ("" for no result); else the full type
};
// Parses one line of BuiltinInfo::type. Throws InternalError if the line has another form.
FunctionType ParseType(const std::string& type);

}  // namespace moonshard
