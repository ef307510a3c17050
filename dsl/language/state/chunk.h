// LoadChunk: plan text -> a Lua function, text only.
#pragma once

#include <string>
#include <string_view>

struct lua_State;

namespace moonshard {

// For a text that is entered line by line: its first line, and whether its values are requested.
struct ChunkPlace {
  int first_line = 1;       // of the text `name`, whose lines before are kept for messages
  bool expression = false;  // the function returns the text's values
};

// Pushes the function of the chunk; its environment is the value on top of the stack, which is popped. Reports and
// pushes nothing, returning false, for a text that is too long, starts with a byte order mark or an escape byte
// (bytecode), contains a NUL, or is not valid Lua (kSyntax, with the line that probably lacks a comma). `internal`: a
// text of moonshard, which diagnostics do not blame.
bool LoadChunk(lua_State* L, std::string_view text, const std::string& name, bool internal,
               const ChunkPlace* place = nullptr);

enum class ChunkKind {
  kExpression,  // its values can be shown
  kStatements,
  kUnfinished,         // valid so far: more lines must follow
  kInvalid,            // LoadChunk reports the error
  kInvalidExpression,  // the same, of what begins like an expression
};
// The kind of an incomplete or complete input.
ChunkKind KindOfChunk(lua_State* L, std::string_view text);

}  // namespace moonshard
