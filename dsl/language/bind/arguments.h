// Reading the arguments of a builtin. A wrong argument is reported at the line of the plan, and the builtin returns
// poison (poison.h).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dsl/language/bind/builtins.h"
#include "dsl/language/state/guarded.h"
#include "dsl/language/state/poison.h"
#include "engine/layout/layout.h"

namespace moonshard {

// The value at `index` for messages: "nil", "'abc'", "3", "a table", "a layout".
std::string Describe(lua_State* L, int index);

// Reports "`builtin`: `what`, got ..." (kBadArgument) for the value at `index` and pushes poison; returns 1.
int BadArgument(lua_State* L, const std::string& builtin, const std::string& what, int index);

// The same with the caret at `where` and this help, unless they are empty.
int BadArgument(lua_State* L, const std::string& builtin, const std::string& what, int index, SourceSpan where,
                std::string help);

// Warns (kDeprecatedName) with `message`, which has the old name and the new one, at the place of the old one.
void ReportOldName(ScriptState& state, const std::string& message, const SourceSpan& where);

// The builtin that the function at `index` is; null for another function.
const BuiltinInfo* BuiltinOf(lua_State* L, int index);

// An integer; also a float with an integral value (4096 / 2).
std::optional<int64_t> IntegerAt(lua_State* L, int index);
std::optional<std::string> StringAt(lua_State* L, int index);
const Placement* LayoutAt(lua_State* L, int index);
// Whether `index` holds a plain table, not a value of the language.
bool IsTable(lua_State* L, int index);

// Reports every key of the table at `index` that `table` does not have (KeysOf; kUnknownKey, with the nearest match),
// and every entry without a key unless `table` has these. Moves the value of a deprecated key to the new one, with a
// warning. False where a key was reported.
bool CheckKeys(lua_State* L, int index, const std::string& table);
// The same for a list: every entry with a key is reported, as one of `what`.
bool CheckList(lua_State* L, int index, const std::string& what);
// The same for keys that a plan declares itself (takes).
bool CheckKeys(lua_State* L, int index, const std::string& builtin, std::span<const std::string> keys, bool positional);
// Whether a value of the table at `index` is poison.
bool HoldsPoison(lua_State* L, int index);
// The positive integer keys of the table at `index`, smallest first.
std::vector<lua_Integer> PositionsOf(lua_State* L, int index);

// "'heads' must be a positive integer", as the key's record declares it.
std::string MustBe(const std::string& table, const std::string& key);

// Whether the value at `index` is one that the key's record allows: of its type, within its bounds, one of its
// literals. Composite types (lists, tables) are for the reader of the key: false.
bool IsAllowed(lua_State* L, int index, const KeyInfo& key);

// KeyReader: the values of a table with the keys of one record table, each checked against its record. A value that the
// record does not allow is reported, and good() becomes false. nil is as good as no key.
class KeyReader {
 public:
  // Checks the keys of the table at `index`, which belongs to the builtin `builtin` and has the keys of `table`.
  KeyReader(lua_State* L, int index, std::string table, std::string builtin = "");

  bool good() const { return good_; }
  void Boolean(const char* key, bool& value);
  std::optional<int64_t> Integer(const char* key);
  // One of the literals of the key; the name of a deprecated one becomes the new one, with a warning.
  std::optional<std::string> Text(const char* key);
  // Pushes the value of a key that has several types. False, and nothing is pushed, where it is nil.
  bool Push(const char* key);
  // Reports the value on top of the stack, which is of `key`.
  void Bad(const char* key);

 private:
  lua_State* lua_;
  int index_;
  std::string table_;
  std::string builtin_;
  bool good_;
};

}  // namespace moonshard
