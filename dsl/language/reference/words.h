// Words: what the reference says of a name beside what dsl/language/bind/names.h has: its group, its type in LuaCATS, the keys of the
// tables that it takes and an example, which a test runs. A test holds both tables against each other and against the
// environment of a plan.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace moonshard {

struct WordInfo {
  const char* name;   // as in AllNames
  const char* group;  // heading in the page
  // LuaCATS: "layout" for a value, "fun(dim: integer, o?: shard_keys): layout" for a function; further forms of it, each on
  // a line, are overloads.
  const char* type;
  const char* example;  // a whole plan, or ""
};

// In the order of AllNames.
std::span<const WordInfo> AllWords();

// A key of a table that a word takes.
struct KeyInfo {
  const char* table;  // LuaCATS class: "shard_keys"
  const char* word;   // "shard"
  const char* key;
  const char* type;  // LuaCATS
  const char* doc;   // one line
};

// Keys of one table stand together.
std::span<const KeyInfo> AllKeys();

// LuaCATS types that are no Lua type: layout, style, rule and so on, with a line of what each is.
struct TypeInfo {
  const char* name;
  const char* doc;
  const char* literals = "";  // of a type that is one of some texts: "\"a\"|\"b\""
};
std::span<const TypeInfo> AllTypes();

struct WordParameter {
  std::string name;  // "...": any number more
  std::string type;
  bool optional = false;
};
struct WordSignature {
  bool is_function = false;
  std::vector<WordParameter> parameters;
  std::string result;  // of a function, "" for none; else the type itself
};
// Reads one line of WordInfo::type. InternalError where it is another form.
WordSignature ParseType(const std::string& type);

}  // namespace moonshard
