// Loading text, and what Lua's parser reports about it.
// Bytecode is refused twice: by its first byte here, for a message that says so, and by the mode "t" of lua_load.
// Crafted bytecode can corrupt memory, since Lua does not verify it; it is the one input against which the sandbox of
// names is no protection.
// Lua's parser stops at its first error and reports the token at which it noticed, which is often not the place of the
// mistake: a comma that is missing at the end of a line is noticed at the first token of the next, an unclosed bracket
// at the end of the file. SyntaxError() adds the line that probably has to change.
// KindOfChunk() decides for the REPL whether an input is complete, in the way of Lua's own interpreter: the text is
// parsed with "return " before it, then as it is. An error whose token is the end of the text means that the input is
// valid so far, and more lines are read.
#include "dsl/language/state/chunk.h"

#include <algorithm>
#include <cstdlib>

#include "dsl/language/state/lua.h"
#include "dsl/language/state/script_state.h"
#include "dsl/language/state/syntax_hint.h"

namespace moonshard {
namespace {

// Why a text is refused before Lua parses it; empty if it is not.
std::string Unreadable(std::string_view text, const ScriptLimits& limits) {
  if (text.size() > limits.source_bytes) {
    return "the text has " + std::to_string(text.size()) + " bytes; at most " + std::to_string(limits.source_bytes) +
           " are allowed";
  }
  if (text.starts_with('\x1b')) return "the text is Lua bytecode; a plan must be source text";
  if (text.starts_with("\xef\xbb\xbf"))
    return "the text starts with a byte order mark; save the file as UTF-8 without the mark";
  if (text.find('\0') != std::string_view::npos) return "the text contains a NUL byte";
  return "";
}

// A message of Lua without the tokens and names of the plan that it quotes.
std::string WithoutQuoted(const std::string& message) {
  const std::string said = message.substr(0, message.find(" near '"));
  std::string out;
  bool quoted = false;
  for (const char c : said) {
    quoted ^= c == '\'';
    if (!quoted) out += c;
  }
  return out;
}

// "llama.lua:12: '}' expected (to close '{' at line 9) near 'at'" as a diagnostic.
Diagnostic SyntaxError(ScriptState& state, const std::string& name, std::string_view text, std::string message) {
  int line = 0;
  // The name, which Lua shortens from the left ("...n/llama.lua"), may have colons of its own.
  const size_t name_end = std::min<size_t>(name.size(), LUA_IDSIZE - 1);
  const bool placed = message.starts_with("...") || message.starts_with(name);
  if (const size_t place = message.find(": ", name_end); placed && place != std::string::npos) {
    line = std::atoi(message.c_str() + name_end + 1);
    message.erase(0, place + 2);
  }
  // Of its limit on C calls Lua's parser says no place.
  if (!placed && message == "C stack overflow") {
    Diagnostic d = MakeDiagnostic(Finding::kScriptLimit, "the text is nested too deeply",
                                  state.sources().SpanOf(name, state.parsed_line()));
    d.required = "at most 200 nested brackets, operators, blocks and functions";
    return d;
  }
  std::string token;
  const size_t near = message.find(" near '");
  if (near != std::string::npos) {
    token = message.substr(near + 7);
    if (token.ends_with('\'')) token.pop_back();
  }
  Diagnostic d = MakeDiagnostic(Finding::kSyntax, message, state.sources().SpanOf(name, line, token));
  if (const std::string said = WithoutQuoted(message);
      said.find("overflow") != std::string::npos || said.find("too many") != std::string::npos) {
    d.finding = Finding::kScriptLimit;
    return d;
  }
  const SyntaxHint hint = HintFor(message, token, text, line);
  if (!hint.help.empty()) {
    d.help = hint.help;
    if (hint.line > 0 && hint.line != line) d.related.push_back(state.sources().SpanOf(name, hint.line));
    return d;
  }
  // "(to close 'for' at line 2)": what is open when the text ends.
  const size_t opened = message.find(" at line ");
  if (token.empty() && opened != std::string::npos) {
    d.related.push_back(state.sources().SpanOf(name, std::atoi(message.c_str() + opened + 9)));
  }
  // In a list Lua reports a missing comma at the next token, usually on the next line.
  const bool in_list = message.starts_with("'}' expected") || message.starts_with("')' expected");
  const int before = state.sources().CodeLineBefore(name, line);
  if (in_list && before > 0) {
    const SourceSpan span = state.sources().SpanOf(name, before);
    const size_t last = span.text.find_last_not_of(" \t");
    const bool first_word =
        d.where.column > 0 && d.where.text.find_first_not_of(" \t") + 1 == static_cast<size_t>(d.where.column);
    if (first_word && last != std::string::npos && std::string_view(",{(").find(span.text[last]) == std::string::npos) {
      d.help = "line " + std::to_string(before) + " ends without a comma";
      d.related.push_back(span);
    } else if (first_word == false) {
      d.help = "a comma may be missing before this token";
    }
  }
  return d;
}

// The text that Lua parses: blank lines in place of those before it, so that line numbers are right, and `return`
// before an expression.
std::string PlacedText(std::string_view text, const ChunkPlace& place) {
  std::string out(static_cast<size_t>(place.first_line - 1), '\n');
  if (place.expression) out += "return ";
  return out.append(text);
}

}  // namespace

bool LoadChunk(lua_State* L, std::string_view text, const std::string& name, bool internal, const ChunkPlace* place) {
  ScriptState& state = ScriptState::From(L);
  const std::string unreadable = Unreadable(text, state.limits());
  if (!unreadable.empty()) {
    SourceSpan file;
    file.file = name;
    state.Report(MakeDiagnostic(Finding::kSyntax, unreadable, file));
    lua_pop(L, 1);
    return false;
  }
  std::string placed;
  if (place != nullptr) {
    state.sources().AddLines(name, place->first_line, text);
    placed = PlacedText(text, *place);
    text = placed;
  } else {
    constexpr size_t kHeldByLine = 40;
    const auto lines = static_cast<size_t>(std::ranges::count(text, '\n')) + 1;
    state.TakeMemory(text.size() + lines * kHeldByLine);
    state.sources().Add(name, text, internal);
  }
  const int status = state.Parse(text, "@" + name);
  if (status == LUA_ERRMEM) lua_error(L);
  if (status != LUA_OK) {
    state.Report(SyntaxError(state, name, text, lua_tostring(L, -1)));
    lua_pop(L, 2);
    return false;
  }
  lua_insert(L, -2);         // [function, environment]
  lua_setupvalue(L, -2, 1);  // the one upvalue of a main chunk
  return true;
}

ChunkKind KindOfChunk(lua_State* L, std::string_view text) {
  constexpr std::string_view kEnd = "<eof>";
  if (!Unreadable(text, ScriptState::From(L).limits()).empty()) return ChunkKind::kInvalid;
  bool unfinished = false;
  bool at_first_word = false;
  for (const bool expression : {true, false}) {
    const std::string placed = PlacedText(text, {1, expression});
    const int status = ScriptState::From(L).Parse(placed, "=input");
    if (status == LUA_ERRMEM) lua_error(L);
    if (status != LUA_OK) {
      const std::string_view message = lua_tostring(L, -1);
      // A text in quotes ends on its line, unless that ends with a backslash.
      const bool open_text = message.find("unfinished string") != std::string_view::npos && !text.ends_with('\\');
      unfinished |= message.ends_with(kEnd) && !open_text;
      const size_t near = message.find("unexpected symbol near '");
      if (near != std::string_view::npos) {
        std::string_view word = message.substr(near + std::string_view("unexpected symbol near '").size());
        word.remove_suffix(1);
        const size_t first = text.find_first_not_of(" \t\n");
        at_first_word = first != std::string_view::npos && text.substr(first).starts_with(word);
      }
    }
    lua_pop(L, 1);
    if (status == LUA_OK) return expression ? ChunkKind::kExpression : ChunkKind::kStatements;
  }
  if (unfinished) return ChunkKind::kUnfinished;
  // A chunk that is wrong at its first token is not a statement: the error of the expression is more specific.
  return at_first_word ? ChunkKind::kInvalidExpression : ChunkKind::kInvalid;
}

}  // namespace moonshard
