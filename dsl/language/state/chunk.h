// LoadChunk: plan text -> a Lua function, text only.
#pragma once

#include <string>
#include <string_view>

struct lua_State;

namespace moonshard {

// Of a text that is typed line by line: where it stands, and whether what it is worth is wanted.
struct ChunkPlace {
  int first_line = 1;       // of the text `name`, whose lines before are kept for messages
  bool expression = false;  // the function returns the text's values
};

// Leaves the chunk's function on top of the stack, its environment being the value on top of the stack before (which is
// taken). Reports and leaves nothing, returning false, for a text that is too long, starts with a byte order mark or an
// escape byte (bytecode), holds a NUL, or is not valid Lua (kSyntax, with the line that probably lacks a comma).
// `internal`: a text of moonshard's own, never blamed.
bool LoadChunk(lua_State* L, std::string_view text, const std::string& name, bool internal,
               const ChunkPlace* place = nullptr);

enum class ChunkKind {
  kExpression,  // its values can be shown
  kStatements,
  kUnfinished,         // valid so far: more lines must follow
  kInvalid,            // LoadChunk says why
  kInvalidExpression,  // the same, of what begins like an expression
};
// What a text is that was typed so far.
ChunkKind KindOfChunk(lua_State* L, std::string_view text);

}  // namespace moonshard
