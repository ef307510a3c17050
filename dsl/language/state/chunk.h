// LoadChunk: compiles plan text to a Lua function; bytecode is refused.
#pragma once

#include <string>
#include <string_view>

struct lua_State;

namespace moonshard {

// The place of a text that is one input of a session.
struct ChunkPlace {
  int first_line = 1;       // the line of the session at which the text starts; earlier lines are kept for messages
  bool expression = false;  // the text is an expression, and the function returns its values
};

// Compiles `text`, pops the value on top of the stack, which becomes the environment of the chunk, pushes the function
// and returns true. `name` is the file in diagnostics. `internal` marks a text of moonshard: diagnostics show the line
// of the caller instead. If the text cannot be compiled, reports an error, pushes nothing and returns false. The error
// is kSyntax if the text is too long, starts with a byte order mark or an escape byte (bytecode), contains a NUL byte
// or is not valid Lua; for invalid Lua the help suggests a fix where the cause is recognized. The error is kScriptLimit
// if the text exceeds a limit of Lua's parser. Raises a Lua error if memory or CPU time is used up.
bool LoadChunk(lua_State* L, std::string_view text, const std::string& name, bool internal,
               const ChunkPlace* place = nullptr);

enum class ChunkKind {
  kExpression,  // an expression, whose values can be printed
  kStatements,
  kUnfinished,         // valid so far; more lines must follow
  kInvalid,            // LoadChunk reports the error
  kInvalidExpression,  // as kInvalid, for a text that begins like an expression
};
// Returns the kind of an input of a session, which may be incomplete. Reports nothing.
ChunkKind KindOfChunk(lua_State* L, std::string_view text);

}  // namespace moonshard
