// One evaluation of untrusted text within limits: how each resource is accounted, how a limit ends the script, and how
// an error becomes a diagnostic.
// Three resources, each with its own account:
//   steps     Lua instructions, counted by a hook every kHookInterval, plus what C functions Charge() for their loops.
//             The same on every machine and every rank, so a plan that is within this limit once is within it always.
//   CPU time  of this thread, looked at in the hook and while Lua parses. The bound for single instructions that are
//             slow.
//   memory    every allocation of Lua (Allocate) and what C++ values behind userdata hold (TakeMemory), in one counter.
// A limit is final. RaiseLimit() sets dead_ and raises; every hook and every Charge() after it raises again, so that no
// code of the script that runs while Lua unwinds can go on. Only Renew(), which the host calls between two lines of a
// session, clears dead_.
// An error is turned into a diagnostic by the message handler, before the stack unwinds: the line of the plan is that
// of a frame which is gone once lua_pcall returns. Lua does not call the handler when memory runs out, therefore the
// hook keeps the last line that it saw (last_seen_).
// C++ exceptions do not cross Lua: Guarded (guarded.h) keeps the exception in exception_ and raises a Lua error in its
// place, and Run() rethrows it when lua_pcall is done. Lua is compiled as C++, so its own errors unwind by exceptions
// as well and the destructors of locals in C functions run.
#include "dsl/language/state/script_state.h"

#include <locale.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>

#include "dsl/language/state/guarded.h"
#include "dsl/language/state/lua.h"
#include "dsl/language/state/poison.h"
#include "engine/core/base/check.h"

namespace moonshard {
namespace {

// Instructions between two looks at the budget. Small, because one instruction (joining two long strings) can cost
// milliseconds.
constexpr int kHookInterval = 100;
constexpr size_t kMostDiagnostics = 100;
constexpr size_t kStepsOfReport = 1000;
constexpr const char* kTooDeep = "function calls are nested too deeply";
constexpr const char* kTooDeepHelp = "look for a function that calls itself without end";
constexpr size_t kMostText = 8000;  // bytes of one text of a diagnostic

int64_t ThreadCpuNs() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// Memory that an allocation takes in the process: glibc adds a header of eight bytes and rounds up to sixteen.
size_t RealSize(size_t bytes) { return bytes == 0 ? 0 : std::max<size_t>((bytes + 8 + 15) & ~size_t{15}, 32); }

int Panic(lua_State*) { throw InternalError("Lua raised an error outside of ScriptState::Run"); }

// Help for frequent messages of Lua; "" for others.
std::string HelpForRaised(const std::string& message) {
  const auto has = [&](const char* part) { return message.find(part) != std::string::npos; };
  if (message.starts_with("ipairs: ") || message.starts_with("pairs: ")) {
    if (has("got nil") || has("got no value")) {
      return "the argument is nil, as for a missing or null field; config:get(\"name\", {}) returns a default";
    }
    return has("got number") ? "'for i = 0, n - 1 do' counts from 0 to n - 1" : "";
  }
  if (!message.starts_with("attempt to ")) return "";
  if (has("index a plan value")) return "a plan cannot be modified: write its keys within plan { ... }";
  for (const char* kind : {"rule", "style", "layout", "pattern"}) {
    if (has(("index a " + std::string(kind) + " value").c_str())) {
      return "a " + std::string(kind) + " has no fields; pass the settings to the function that creates the " + kind;
    }
  }
  if (has("call a layout value"))
    return "a layout cannot be called; the style for a replicated module is replicated {}";
  if (has("call a nil value"))
    return "no function has this name; to call a function of a module, write local m <const> = require \"name\" and "
           "m.f(...)";
  if (has("nil value (field") && !has("call")) {
    return "a missing or null field is nil; config:get(\"name\", default) returns a default";
  }
  if (has("nil value (local")) return "the variable was not assigned, or was assigned nil";
  return "";
}

// "bad argument #1 to 'ipairs' (table expected, got nil)" as "ipairs: argument 1 must be a table, got nil".
std::string InPlainWords(const std::string& message) {
  constexpr std::string_view kBad = "bad argument #";
  constexpr std::string_view kExpected = " expected, got ";
  const size_t name = message.find(" to '");
  const size_t detail = message.find("' (");
  const size_t expected = message.find(kExpected);
  if (!message.starts_with(kBad) || name == std::string::npos || detail == std::string::npos ||
      expected == std::string::npos || !message.ends_with(")") || name > detail || detail > expected) {
    return message;
  }
  const std::string type = message.substr(detail + 3, expected - detail - 3);
  const std::string got = message.substr(expected + kExpected.size(), message.size() - expected - kExpected.size() - 1);
  return message.substr(name + 5, detail - name - 5) + ": argument " + message.substr(kBad.size(), name - kBad.size()) +
         " must be a " + type + ", got " + got;
}

std::string MemoryMessage(const ScriptLimits& limits) {
  return "the plan needs more than " + std::to_string(limits.memory_bytes >> 20) + " MiB of memory";
}

// The C locale on this thread, during its lifetime: Lua compares texts with strcoll, and reads and writes numbers with
// the decimal point of the locale.
class CLocale {
 public:
  CLocale() : before_(uselocale(Standard())) {}
  ~CLocale() { uselocale(before_); }
  CLocale(const CLocale&) = delete;
  CLocale& operator=(const CLocale&) = delete;

 private:
  static locale_t Standard() {
    static const locale_t standard = newlocale(LC_ALL_MASK, "C", locale_t{});
    return standard;
  }
  locale_t before_;
};

Diagnostic TooDeep(const SourceSpan& where) {
  Diagnostic d = MakeDiagnostic(Finding::kScriptLimit, kTooDeep, where);
  d.help = kTooDeepHelp;
  return d;
}

}  // namespace

ScriptState::ScriptState(const ScriptLimits& limits)
    : limits_(limits), memory_cap_(limits.memory_bytes), steps_left_(limits.steps) {
  lua_ = lua_newstate(&ScriptState::Allocate, this);
  if (lua_ == nullptr) throw PlanError({MakeDiagnostic(Finding::kScriptLimit, MemoryMessage(limits))});
  lua_atpanic(lua_, &Panic);
  *static_cast<ScriptState**>(lua_getextraspace(lua_)) = this;
  SetHook();
}

// lua_close runs the __gc of every userdata, each of which ends its HeldValue. Lua skips a finalizer for which it has
// no memory; what that one held is still in the list and is freed here.
ScriptState::~ScriptState() {
  memory_cap_ = SIZE_MAX;  // closing may allocate
  lua_close(lua_);
  while (held_ != nullptr) End(held_);
}

// HeldValues are a doubly linked list through the values themselves: adding and removing take constant time and never
// allocate, because End() runs inside the garbage collector, also when no memory is left.
void ScriptState::Hold(std::unique_ptr<HeldValue> value) {
  HeldValue* const first = value.release();
  first->after_ = held_;
  if (held_ != nullptr) held_->before_ = first;
  held_ = first;
}

void ScriptState::End(HeldValue* value) {
  (value->before_ != nullptr ? value->before_->after_ : held_) = value->after_;
  if (value->after_ != nullptr) value->after_->before_ = value->before_;
  delete value;
}

void ScriptState::SetHook() {
  lua_sethook(lua_, &ScriptState::CountHook, LUA_MASKCOUNT | (on_chunk_end_ ? LUA_MASKRET : 0), kHookInterval);
}

void ScriptState::OnChunkEnd(std::function<void(lua_State*, lua_Debug*)> on_chunk_end) {
  on_chunk_end_ = std::move(on_chunk_end);
  SetHook();
}

void ScriptState::Renew() {
  dead_ = false;
  limit_.reset();
  steps_left_ = limits_.steps;
  last_seen_ = {};
  diagnostics_.clear();
  exception_ = nullptr;
  SetHook();
  lua_gc(lua_, LUA_GCCOLLECT);
  peak_ = used_;
}

ScriptState& ScriptState::From(lua_State* L) { return **static_cast<ScriptState**>(lua_getextraspace(L)); }

// Every allocation of Lua, counted as the system counts it (RealSize), so that the limit bounds the memory of the
// process and not only the requested bytes. A refused allocation makes Lua collect garbage and try once more, then
// raise "not enough memory". Shrinking and freeing always succeed, as Lua requires.
void* ScriptState::Allocate(void* self, void* block, size_t old_size, size_t new_size) {
  auto& state = *static_cast<ScriptState*>(self);
  // With no block, Lua passes the kind of the new object in place of a size.
  const size_t held = block != nullptr ? RealSize(old_size) : 0;
  if (new_size == 0) {
    std::free(block);
    state.used_ -= held;
    return nullptr;
  }
  const size_t wanted = RealSize(new_size);
  if (wanted > held && wanted - held > state.memory_cap_ - std::min(state.memory_cap_, state.used_)) return nullptr;
  void* grown = std::realloc(block, new_size);
  if (grown == nullptr) return nullptr;
  state.used_ += wanted - held;
  state.peak_ = std::max(state.peak_, state.used_);
  return grown;
}

// An error that the script cannot outlive. Nothing in the sandbox catches errors (no pcall, no coroutine), but Lua runs
// finalizers and closes to-be-closed variables while it unwinds; the hook on every line and instruction, with dead_
// set, raises again in each of them.
void ScriptState::RaiseLimit(std::string message, std::string help) {
  dead_ = true;
  if (!limit_) {
    limit_ = MakeDiagnostic(Finding::kScriptLimit, std::move(message));
    limit_->help = std::move(help);
  }
  lua_sethook(lua_, &ScriptState::CountHook, LUA_MASKCOUNT | LUA_MASKLINE, 1);
  lua_pushliteral(lua_, "limit");
  lua_error(lua_);
  std::abort();  // lua_error does not return
}

// Runs every kHookInterval instructions. Three bounds meet here, because each alone has a gap: the count of
// instructions is the same on every machine and so decides normally; CPU time bounds instructions that are slow; the
// depth of calls bounds C stack use of nested Lua-C calls. Work within one C function, which no hook interrupts, is
// bounded by Charge().
void ScriptState::CountHook(lua_State* L, lua_Debug* record) {
  ScriptState& state = From(L);
  if (record->event == LUA_HOOKRET) {
    lua_getinfo(L, "S", record);
    if (record->what == std::string_view("main")) state.on_chunk_end_(L, record);
    return;
  }
  state.last_seen_ = state.UserSpan();
  lua_Debug deepest;
  if (!state.dead_ && lua_getstack(L, state.limits_.calls, &deepest) != 0) {
    state.RaiseLimit(kTooDeep, kTooDeepHelp);
  }
  state.Charge(kHookInterval);
  if (state.OutOfTime()) state.RaiseTimeLimit();
}

bool ScriptState::OutOfTime() const {
  return ThreadCpuNs() - cpu_start_ns_ > std::chrono::nanoseconds(limits_.time).count();
}

void ScriptState::RaiseTimeLimit() {
  RaiseLimit("the plan used more than " + std::to_string(limits_.time.count()) + " ms of CPU time",
             "a plan computes a list of rules: look for a loop that does not end");
}

int ScriptState::Parse(std::string_view text, const std::string& name) {
  Charge(text.size());
  struct Source {
    const ScriptState& state;
    std::string_view left;
    bool late = false;
    int line = 1;        // of the last part
    bool ended = false;  // by the last part
    size_t since = 0;    // bytes since the time was looked at
  } source{*this, text};
  // No hook runs in the parser, whose time is quadratic for a chain of `and`: the text is passed in small parts, and
  // the CPU time is checked at each. A part is of one line: where Lua gives up without a place, it was at the last
  // part.
  const lua_Reader next_part = [](lua_State*, void* data, size_t* size) -> const char* {
    constexpr size_t kPart = 256;
    Source& from = *static_cast<Source*>(data);
    if (from.since == 0) from.late = from.late || from.state.OutOfTime();
    const size_t line_end = std::min(from.left.find('\n'), kPart - 1);
    const std::string_view part = from.late ? "" : from.left.substr(0, line_end + 1);
    from.left.remove_prefix(part.size());
    if (from.ended) ++from.line;
    from.ended = part.ends_with('\n');
    from.since = from.since + part.size() >= kPart ? 0 : from.since + part.size();
    *size = part.size();
    return part.empty() ? nullptr : part.data();
  };
  parsing_ = true;
  const int status = lua_load(lua_, next_part, &source, name.c_str(), "t");
  parsing_ = false;
  parsed_line_ = source.line;
  if (source.late) RaiseTimeLimit();
  return status;
}

// The comparison is before the subtraction, and saturates: a length of 2^63 from a script must not wrap the budget into
// a new one. Once dead_, charging raises whatever the amount, which ends C functions that loop over script callbacks.
void ScriptState::Charge(size_t steps) {
  const auto wanted = static_cast<int64_t>(std::min<size_t>(steps, INT64_MAX));
  if (dead_ || wanted > steps_left_) {
    RaiseLimit("the plan took more than " + std::to_string(limits_.steps) + " steps",
               "look for a loop that does not end");
  }
  steps_left_ -= wanted;
}

// Lua retries a refused allocation after a collection (Allocate), and C++ values get the same chance here: a script
// that made and dropped many values still holds their memory until its garbage is collected.
void ScriptState::TakeMemory(size_t bytes) {
  if (bytes > memory_cap_ || used_ > memory_cap_ - bytes) {
    lua_gc(lua_, LUA_GCCOLLECT);
    if (bytes > memory_cap_ || used_ > memory_cap_ - bytes) RaiseLimit(MemoryMessage(limits_), "");
  }
  used_ += bytes;
  peak_ = std::max(peak_, used_);
}

// Walks the stack outward to the first frame of user code. With blame_caller_ the innermost user frame, the function
// whose arguments are checked, is skipped too.
SourceSpan ScriptState::UserSpan(std::string_view token) {
  SourceSpan other;  // where there is no better one
  bool pass_over = blame_caller_;
  lua_Debug record;
  for (int level = 0; lua_getstack(lua_, level, &record) != 0; ++level) {
    lua_getinfo(lua_, "Sl", &record);
    if (record.currentline < 0) continue;
    const std::string name = record.source + 1;  // after '@'
    const bool internal = sources_.IsInternal(name);
    if (!internal && !pass_over) return sources_.SpanOf(name, record.currentline, token);
    if (!other.known()) other = sources_.SpanOf(name, record.currentline, token);
    pass_over = false;
  }
  return other;
}

SourceSpan ScriptState::UserSpanOfText(std::string_view text) {
  SourceSpan here = UserSpan(text);
  for (const char quote : {'"', '\''}) {
    const int column = ColumnOf(here.text, quote + std::string(text) + quote);
    if (column > 0) here.column = column + 1;
  }
  return here;
}

// Equal diagnostics are dropped: a mistake in the body of a loop is one mistake. Their number is small
// (kMostDiagnostics), so a linear search is enough.
void ScriptState::Add(Diagnostic diagnostic) {
  // The script controls these texts, and there are up to kMostDiagnostics.
  for (std::string* text : {&diagnostic.message, &diagnostic.declared, &diagnostic.required, &diagnostic.help}) {
    if (text->size() > kMostText) *text = text->substr(0, kMostText) + "...";
  }
  const std::string text = diagnostic.ToText();
  const bool said = std::ranges::any_of(diagnostics_, [&](const Diagnostic& d) { return d.ToText() == text; });
  if (!said) diagnostics_.push_back(std::move(diagnostic));
}

// A report has a price in steps: it walks the stack and compares texts, which is far more work than the few
// instructions that a script needs to cause one.
void ScriptState::Report(Diagnostic diagnostic) {
  Charge(kStepsOfReport);
  if (diagnostics_.size() >= kMostDiagnostics) {
    RaiseLimit("the plan has more than " + std::to_string(kMostDiagnostics) + " mistakes",
               "further mistakes are not shown");
  }
  Add(std::move(diagnostic));
}

void ScriptState::Report(Finding finding, std::string message, std::string_view token, std::string help) {
  Diagnostic diagnostic = MakeDiagnostic(finding, std::move(message), UserSpan(token));
  diagnostic.help = std::move(help);
  Report(std::move(diagnostic));
}

// Files stay in the order of their first diagnostic, which is the order of evaluation; within a file, lines ascend. The
// sort is stable, so several diagnostics of one line keep their order too.
Diagnostics ScriptState::TakeDiagnostics() {
  std::vector<std::string> files;
  for (const Diagnostic& d : diagnostics_) {
    if (std::ranges::find(files, d.where.file) == files.end()) files.push_back(d.where.file);
  }
  const auto place = [&](const Diagnostic& d) {
    return std::pair(std::ranges::find(files, d.where.file) - files.begin(), d.where.line);
  };
  std::ranges::stable_sort(diagnostics_, {}, place);
  return std::move(diagnostics_);
}

int ScriptState::MessageHandler(lua_State* L) {
  if (!From(L).parsing_) From(L).ReportRaised();
  return 1;
}

// The error value is on top of the stack and its frames are still there. In this order, because the later cases would
// misread the earlier ones:
//   a limit              the value is only a marker; the diagnostic was made by RaiseLimit and gets its line here
//   not text             error {}: there is no message to show
//   not enough memory    raised as an ordinary error by code that saw LUA_ERRMEM from lua_load
//   a message with the name of poison   follows from a mistake that was reported, and is dropped
//   stack overflow       Lua's own limit on C calls, which an endless recursion may reach before the limit of calls
void ScriptState::ReportRaised() {
  if (limit_) {
    limit_->where = UserSpan();
    Add(*limit_);
    return;
  }
  if (lua_type(lua_, -1) != LUA_TSTRING) {
    Diagnostic d =
        MakeDiagnostic(Finding::kScriptError,
                       std::string("the plan raised a ") + luaL_typename(lua_, -1) + " as an error", UserSpan("error"));
    d.help = "the argument of error must be a string";
    Add(std::move(d));
    return;
  }
  std::string message = lua_tostring(lua_, -1);
  // Lua puts "file:line: " of the raising function in front; the diagnostic has its own place.
  lua_Debug record;
  for (int level = 0; lua_getstack(lua_, level, &record) != 0; ++level) {
    lua_getinfo(lua_, "Sl", &record);
    const std::string prefix = std::string(record.short_src) + ":" + std::to_string(record.currentline) + ": ";
    if (message.starts_with(prefix)) {
      message.erase(0, prefix.size());
      break;
    }
  }
  if (message == "not enough memory") {
    Add(MakeDiagnostic(Finding::kScriptLimit, MemoryMessage(limits_), UserSpan()));
    return;
  }
  // The mistake was reported where the poison was made.
  if (HasErrors(diagnostics_) && message.find(kPoisonName) != std::string::npos) return;
  if (message.find("stack overflow") != std::string::npos) {
    Add(TooDeep(UserSpan()));
    return;
  }
  // Lua names the variable as (global 'x'), (local 'x'), (field 'x'): the caret goes under it.
  std::string token;
  const size_t quote = message.find('\'');
  if (quote != std::string::npos) token = message.substr(quote + 1, message.find('\'', quote + 1) - quote - 1);
  message = InPlainWords(message);
  Diagnostic d = MakeDiagnostic(Finding::kScriptError, message, UserSpan(token));
  d.help = HelpForRaised(message);
  Add(std::move(d));
}

int ScriptState::CallBody(lua_State* L) {
  const auto& body = *static_cast<const std::function<void(lua_State*)>*>(lua_touserdata(L, 1));
  lua_settop(L, 0);
  body(L);
  return 0;
}

// The message handler and the body are pushed first, so that nothing between lua_pcall and the body can fail. The clock
// starts with each Run; steps and memory go on from the Run before, until Renew().
bool ScriptState::Run(const std::function<void(lua_State*)>& body) {
  const CLocale c_locale;
  cpu_start_ns_ = ThreadCpuNs();
  lua_pushcfunction(lua_, &Guarded<&ScriptState::MessageHandler>);
  lua_pushcfunction(lua_, &Guarded<&ScriptState::CallBody>);
  lua_pushlightuserdata(lua_, const_cast<std::function<void(lua_State*)>*>(&body));
  const int status = lua_pcall(lua_, 1, 0, 1);
  lua_settop(lua_, 0);
  if (exception_) std::rethrow_exception(exception_);
  if (status == LUA_OK) return true;
  if (status == LUA_ERRMEM) {
    Add(MakeDiagnostic(Finding::kScriptLimit, MemoryMessage(limits_), last_seen_));
  } else if (!HasErrors(diagnostics_)) {  // the handler itself had no room left
    Add(TooDeep(last_seen_));
  }
  return false;
}

}  // namespace moonshard
