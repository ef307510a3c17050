// Lines of Lua in one state that survives all of them.
// A chunk of Lua ends with its locals, but a session's next line must see `local n = 4`. A hook at the end of the chunk
// copies the locals of its frame into the table of the session's names, which the environment of the next line
// contains. Each line has a budget of instructions of its own; memory is shared, since values stay, and a session whose
// names hold more than half of it begins a new state rather than fail at every line.
// A new model or config begins a new state too: values of the old one (styles with its head counts, paths) have no
// meaning for it. A new mesh or option does not, but forgets loaded modules, which may have computed with the old ones.
#include "dsl/commands/repl/line_runner.h"

#include <algorithm>
#include <cctype>

#include "dsl/commands/repl/lua_value.h"
#include "dsl/language/bind/arguments.h"
#include "dsl/language/bind/values.h"
#include "dsl/language/eval/file_builtins.h"
#include "dsl/language/sandbox/environment.h"
#include "engine/core/base/quoted.h"

namespace moonshard {
namespace {

// Where the long bracket that begins at `at`, [[...]] or [==[...]==], has its last character (the text's end where it
// does not close); `at` itself where none begins there.
size_t EndOfLongBracket(std::string_view text, size_t at) {
  if (at >= text.size() || text[at] != '[') return at;
  const size_t second = text.find_first_not_of('=', at + 1);
  if (second == std::string_view::npos || text[second] != '[') return at;
  const std::string close = "]" + std::string(second - at - 1, '=') + "]";
  const size_t end = text.find(close, second + 1);
  return end == std::string_view::npos ? text.size() : end + close.size() - 1;
}

// Lua stores no variable for `local n <const> = 4`, so its value could not be kept for later lines: every such <const>
// is replaced by blanks, which keeps the columns of messages. Strings and comments are unchanged.
std::string WithoutConst(std::string_view text) {
  std::string out(text);
  constexpr std::string_view kWord = "const";
  char quote = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    if (quote != 0) {
      if (out[i] == '\\')
        ++i;
      else if (out[i] == quote || out[i] == '\n')
        quote = 0;
    } else if (out[i] == '"' || out[i] == '\'') {
      quote = out[i];
    } else if (out.compare(i, 2, "--") == 0) {
      const size_t end = EndOfLongBracket(out, i + 2);
      i = end != i + 2 ? end : std::min(out.find('\n', i), out.size());
    } else if (out[i] == '[') {
      i = EndOfLongBracket(out, i);
    } else if (out[i] == '<') {
      size_t at = out.find_first_not_of(" \t\n", i + 1);
      if (at == std::string::npos || out.compare(at, kWord.size(), kWord) != 0) continue;
      at = out.find_first_not_of(" \t\n", at + kWord.size());
      if (at == std::string::npos || out[at] != '>') continue;
      for (size_t blank = i; blank <= at; ++blank) out[blank] = out[blank] == '\n' ? '\n' : ' ';
    }
  }
  return out;
}

// Adds the locals of a chunk that ends to the names of the session. The hook runs while the frame still exists.
void KeepLocals(lua_State* L, lua_Debug* record) {
  luaL_checkstack(L, 4, "too many locals");
  PushSessionNames(L);  // [names]
  for (int i = 1; const char* name = lua_getlocal(L, record, i); ++i) {
    if (name[0] == '(') {
      lua_pop(L, 1);
    } else {
      lua_setfield(L, -2, name);
    }
  }
  lua_pop(L, 1);
}

const char kSavedKey = 0;  // registry: the names as they were before the line

// Copies the table on top of the stack, which stays.
void PushCopy(lua_State* L) {
  lua_newtable(L);
  for (lua_pushnil(L); lua_next(L, -3) != 0;) {
    lua_pushvalue(L, -2);
    lua_insert(L, -2);
    lua_rawset(L, -4);
  }
}

void SaveNames(lua_State* L) {
  PushSessionNames(L);
  PushCopy(L);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &kSavedKey);
  lua_pop(L, 1);
}

void RestoreNames(lua_State* L) {
  PushSessionNames(L);
  for (lua_pushnil(L); lua_next(L, -2) != 0;) {
    lua_pop(L, 1);
    lua_pushvalue(L, -1);
    lua_pushnil(L);
    lua_rawset(L, -4);  // clearing a field while walking is allowed
  }
  lua_rawgetp(L, LUA_REGISTRYINDEX, &kSavedKey);  // [names, saved]
  for (lua_pushnil(L); lua_next(L, -2) != 0;) {
    lua_pushvalue(L, -2);
    lua_insert(L, -2);
    lua_rawset(L, -5);
  }
  lua_settop(L, 0);
}

// Lua for a pattern: unchanged if it begins like one, else a string in quotes.
std::string PatternCodeOfLine(const std::string& pattern) {
  const bool code = !pattern.empty() && (pattern[0] == '"' || pattern[0] == '\'' || pattern.starts_with("[[") ||
                                         pattern.starts_with("re[") || pattern.starts_with("re\"") ||
                                         pattern.starts_with("numbered\"") || pattern.starts_with("numbered["));
  return code ? pattern : Quoted(pattern);
}

}  // namespace

LineRunner::LineRunner(LineInputs inputs) : inputs_(std::move(inputs)) { Start(); }
LineRunner::~LineRunner() = default;

void LineRunner::Start() {
  PlanInputs inputs;
  inputs.config = inputs_.config;
  inputs.mesh = inputs_.mesh;
  inputs.model = inputs_.model.get();
  inputs.options = inputs_.options;
  evaluation_ = std::make_unique<Evaluation>(inputs);
  const bool done = evaluation_->state().Run([](lua_State* L) {
    OpenLanguage(L);
    PushSessionEnvironment(L);
  });
  Check(done, "the plan language does not open: " + ToText(evaluation_->state().TakeDiagnostics()));
}

void LineRunner::Renew() {
  evaluation_->Renew(inputs_.mesh, inputs_.options);
  // A line needs memory to run, whatever the lines before it use.
  const ScriptState& state = evaluation_->state();
  if (state.memory_used() < state.limits().memory_bytes / 2) return;
  Start();
  notice_ =
      "the values of assigned names used more than half of the session's memory limit: all assigned names were removed";
}

void LineRunner::SetInputs(LineInputs inputs) {
  const bool another = inputs.model != inputs_.model || inputs.config != inputs_.config;
  inputs_ = std::move(inputs);
  if (another) {
    if (!Names().empty()) notice_ = "another model was loaded: all assigned names were removed";
    Start();
    return;
  }
  Renew();
  evaluation_->state().Run(&ForgetModules);
}

ChunkKind LineRunner::KindOf(std::string_view text) {
  Renew();
  ChunkKind kind = ChunkKind::kInvalid;
  evaluation_->state().Run([&](lua_State* L) { kind = KindOfChunk(L, text); });
  return kind;
}

// A transaction: names are saved before the line and restored if it reports an error, so that a line that fails halfway
// does not leave half of its assignments. The state itself survives, also after a limit: Renew gives the next line a
// new budget.
Diagnostics LineRunner::Protected(const LinePlace& place, const std::function<void(lua_State*)>& body) {
  Renew();
  ScriptState& state = evaluation_->state();
  evaluation_->running().push_back({place.file, inputs_.folder});
  bool done = state.Run(&SaveNames) && state.Run(body);
  state.OnChunkEnd(nullptr);
  Diagnostics diagnostics = state.TakeDiagnostics();
  Check(done || HasErrors(diagnostics), "a line ended without a result or a diagnostic");
  if (done && !HasErrors(diagnostics)) return diagnostics;
  // The names are restored before the memory is measured: the values of the failed line are what used it up.
  evaluation_->Renew(inputs_.mesh, inputs_.options);
  if (!state.Run(&RestoreNames)) {
    Start();
    notice_ = "the assigned names could not be restored after an error: all assigned names were removed";
  }
  return diagnostics;
}

Result<std::vector<JsonValue>> LineRunner::Run(std::string_view text, ChunkKind kind, const LinePlace& place) {
  std::vector<JsonValue> values;
  const bool expression = kind == ChunkKind::kExpression || kind == ChunkKind::kInvalidExpression;
  const std::string shown = expression ? std::string(text) : WithoutConst(text);
  Diagnostics diagnostics = Protected(place, [&](lua_State* L) {
    PushSessionEnvironment(L);
    const ChunkPlace chunk{place.line, expression};
    if (!LoadChunk(L, shown, place.file, false, &chunk)) return;
    evaluation_->state().sources().AddLines(place.file, place.line, text);
    if (!expression) evaluation_->state().OnChunkEnd(&KeepLocals);
    lua_call(L, 0, LUA_MULTRET);
    evaluation_->state().OnChunkEnd(nullptr);
    const int count = lua_gettop(L);
    for (int i = 1; i <= count; ++i) {
      if (IsPoison(L, i)) continue;  // reported where it was made
      values.push_back(ToJson(L, i));
    }
    if (count == 0) return;
    PushSessionNames(L);
    lua_pushvalue(L, 1);
    lua_setfield(L, -2, "_");
  });
  return Result<std::vector<JsonValue>>(std::move(values), std::move(diagnostics));
}

Result<Rule> LineRunner::MakeRule(const std::string& pattern, const std::string& style, const LinePlace& place) {
  std::optional<Rule> rule;
  const std::string code = "local style = " + style +
                           "; if type(style) == 'function' then style = style {} end; return at(" +
                           PatternCodeOfLine(pattern) + ", style)";
  Diagnostics diagnostics = Protected(place, [&](lua_State* L) {
    PushSessionEnvironment(L);
    const ChunkPlace chunk{place.line, false};
    if (!LoadChunk(L, code, place.file, false, &chunk)) return;
    if (!place.text.empty()) evaluation_->state().sources().AddLines(place.file, place.line, place.text);
    lua_call(L, 0, 1);
    if (const Rule* made = Userdata<Rule>::To(L, -1)) rule = *made;
  });
  if (rule && !HasErrors(diagnostics)) return Result<Rule>(*std::move(rule), std::move(diagnostics));
  Check(HasErrors(diagnostics), "at() made no rule and reported nothing");
  return diagnostics;
}

std::vector<std::string> LineRunner::Names() {
  Renew();
  std::vector<std::string> names;
  evaluation_->state().Run([&](lua_State* L) {
    PushSessionNames(L);
    for (lua_pushnil(L); lua_next(L, -2) != 0; lua_pop(L, 1)) {
      if (const std::optional<std::string> name = StringAt(L, -2)) names.push_back(*name);
    }
  });
  std::ranges::sort(names);
  return names;
}

}  // namespace moonshard
