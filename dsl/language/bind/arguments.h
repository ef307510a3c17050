// Arguments: reads and checks the arguments of a builtin. A wrong argument is reported at the line of the plan, and the
// builtin returns poison (poison.h).
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

// Returns the value at `index` as text for messages: "nil", "'abc'", "3", "a table", "a layout".
std::string Describe(lua_State* L, int index);

// Reports "`builtin`: `what`, got ..." (kBadArgument) for the value at `index`, pushes poison and returns 1. The caret
// is under the first name in single quotes in `what` if the call in the plan contains this name, else under the name of
// the builtin.
int BadArgument(lua_State* L, const std::string& builtin, const std::string& what, int index);

// As above. If `where` has a column, the caret is at `where`. If `help` is not empty, `help` replaces the default help.
int BadArgument(lua_State* L, const std::string& builtin, const std::string& what, int index, SourceSpan where,
                std::string help);

// Reports a warning (kDeprecatedName) at `where`, the place of the old name. `message` contains the old and the new
// name.
void ReportOldName(ScriptState& state, const std::string& message, const SourceSpan& where);

// Returns the record of the builtin whose function is at `index`; null if the value is not a function of the language.
const BuiltinInfo* BuiltinOf(lua_State* L, int index);

// Each of these functions returns the value at `index`, or nothing (null) if the value has another type, without a
// report. IntegerAt also accepts a float with an integral value (4096 / 2). Lua owns the layout.
std::optional<int64_t> IntegerAt(lua_State* L, int index);
std::optional<std::string> StringAt(lua_State* L, int index);
const Placement* LayoutAt(lua_State* L, int index);
// Returns whether the value at `index` is a plain Lua table, not a userdata value of the language.
bool IsTable(lua_State* L, int index);

// Checks the keys of the Lua table at `index` against the keys of the record table `table` (KeysOf). Reports
// (kUnknownKey, with the nearest match) every unknown key, and every entry without a key unless `table` has positional
// entries. Moves the value of a deprecated key to the new key, with a warning. Returns false if a key is unknown.
bool CheckKeys(lua_State* L, int index, const std::string& table);
// As above for a list: every entry that has a key is reported as an unknown key of `what`, the name of the list.
bool CheckList(lua_State* L, int index, const std::string& what);
// As the first CheckKeys, with the allowed `keys` in place of a record table: for keys that a plan declares (takes). If
// `positional`, entries without a key are allowed. `builtin` is the name of the table in messages.
bool CheckKeys(lua_State* L, int index, const std::string& builtin, std::span<const std::string> keys, bool positional);
// Returns whether a value of the table at `index` is poison.
bool HoldsPoison(lua_State* L, int index);
// Returns the positive integer keys of the table at `index` in ascending order.
std::vector<lua_Integer> PositionsOf(lua_State* L, int index);

// Returns the requirement for a value of the key, for messages: "'heads' must be a positive integer".
std::string MustBe(const std::string& table, const std::string& key);

// Returns whether the record of the key allows the value at `index`: by type, bounds and literals. Returns false for a
// list or a table, whose entries the caller must check.
bool IsAllowed(lua_State* L, int index, const KeyInfo& key);

// KeyReader: reads the values of a Lua table and checks each value against the record of its key. A value that the
// record does not allow is reported, and good() becomes false. A key with the value nil counts as absent.
class KeyReader {
 public:
  // Checks the keys of the Lua table at `index` against the record table `table`. `builtin` is the name in messages; if
  // it is empty, messages use `table`. The Lua table must stay at `index`.
  KeyReader(lua_State* L, int index, std::string table, std::string builtin = "");

  // Returns false if a key is unknown, a value is poison, or a value was reported.
  bool good() const { return good_; }
  // Sets `value` if the key is present and allowed; else leaves `value` unchanged.
  void Boolean(const char* key, bool& value);
  // Returns the value of the key; nothing if the key is absent or its value was reported.
  std::optional<int64_t> Integer(const char* key);
  std::optional<double> Number(const char* key);
  // As Integer, for a string: the value must be one of the literals of the key, or any non-empty string if the key has
  // no literals. A deprecated literal is replaced by the new literal, with a warning.
  std::optional<std::string> Text(const char* key);
  // Pushes the value of the key, unchecked, for a key with several types. Returns false and pushes nothing if the value
  // is nil.
  bool Push(const char* key);
  // Reports the value on top of the stack as a wrong value of `key`. The value stays on the stack.
  void Bad(const char* key);

 private:
  lua_State* lua_;
  int index_;
  std::string table_;
  std::string builtin_;
  bool good_;
};

}  // namespace moonshard
