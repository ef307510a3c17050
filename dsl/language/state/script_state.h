// ScriptState: one Lua state for one evaluation, with exact accounting of memory, a budget of steps and CPU time, and
// the diagnostics of the script. The next evaluation starts from a new state. The lines of a session
// (dsl/commands/repl) share one state, each with a budget of its own.
//
// Stages after: sandbox (the names of a plan), bind (the plan language), eval (the public entry points).
//
// Two kinds of failure. A builtin that is called wrongly Report()s it and returns poison (poison.h), so that the script
// continues and one run reports its other mistakes too. A failure that cannot continue (a limit, an error that Lua
// raises) ends Run().
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "dsl/language/state/limits.h"
#include "dsl/language/state/sources.h"
#include "engine/core/base/diagnostic.h"

struct lua_State;
struct lua_Debug;

namespace moonshard {

class ScriptState {
 public:
  explicit ScriptState(const ScriptLimits& limits);
  ~ScriptState();
  ScriptState(const ScriptState&) = delete;
  ScriptState& operator=(const ScriptState&) = delete;

  static ScriptState& From(lua_State* L);
  const ScriptLimits& limits() const { return limits_; }
  // For the layer above: its own object, reached from C functions.
  void set_owner(void* owner) { owner_ = owner; }
  void* owner() const { return owner_; }

  // Runs `body` with the state, protected: an error that Lua raises in it becomes a diagnostic, and Run returns false.
  // A C++ exception that left a C function (a defect of moonshard) is rethrown to the caller. Lua functions may be
  // called only within a body. The body runs under the C locale, on this thread alone: what a plan computes
  // (comparisons of texts, numbers as text) does not depend on the host's.
  bool Run(const std::function<void(lua_State*)>& body);

  // A new budget without diagnostics: for the next line of a session, also after one that exceeded a limit. Collects
  // garbage; memory that is still in use counts.
  void Renew();
  // Called at the end of every chunk (not of its functions) while its locals are still there, with the record that
  // lua_getlocal takes. It may raise a Lua error.
  void OnChunkEnd(std::function<void(lua_State*, lua_Debug*)> on_chunk_end);

  // lua_load of a text as a chunk called `name` ("@plan.lua"): Lua's status, its function or message on top of the
  // stack. No instruction runs while Lua reads, so the CPU time is looked at here too: raises a Lua error where it is
  // used up. An error is the caller's to report.
  int Parse(std::string_view text, const std::string& name);
  // The line of the last text at which Parse ended.
  int parsed_line() const { return parsed_line_; }

  // Takes `steps` off the budget; raises a Lua error where it is used up. For library functions whose work is not
  // bounded by the number of instructions.
  void Charge(size_t steps);
  // Ends the script: raises a Lua error that nothing in it can outlive. The diagnostic is kScriptLimit.
  [[noreturn]] void RaiseLimit(std::string message, std::string help);
  // Memory of C++ values that userdata hold. Take raises a Lua error beyond the limit, after a garbage collection.
  void TakeMemory(size_t bytes);
  void GiveMemory(size_t bytes) { used_ -= bytes; }
  // Takes memory for its lifetime, which an error that Lua raises ends too: errors are exceptions here.
  class Reserved {
   public:
    Reserved(ScriptState& state, size_t bytes) : state_(state), bytes_(bytes) { state_.TakeMemory(bytes); }
    ~Reserved() { state_.GiveMemory(bytes_); }
    Reserved(const Reserved&) = delete;
    Reserved& operator=(const Reserved&) = delete;
    // From now on the memory is another owner's to give back.
    void Keep() { bytes_ = 0; }

   private:
    ScriptState& state_;
    size_t bytes_;
  };
  // A C++ value that a userdata represents. It is destroyed when Lua collects the userdata, at the latest with the
  // state: when memory runs out, Lua may skip the collecting function.
  class HeldValue {
   public:
    HeldValue() = default;
    virtual ~HeldValue() = default;
    HeldValue(const HeldValue&) = delete;
    HeldValue& operator=(const HeldValue&) = delete;

   private:
    friend class ScriptState;
    HeldValue* before_ = nullptr;
    HeldValue* after_ = nullptr;
  };
  void Hold(std::unique_ptr<HeldValue> value);
  void End(HeldValue* value);
  // Memory held now, and the most there ever was, in bytes.
  size_t memory_used() const { return used_; }
  size_t memory_peak() const { return peak_; }

  Sources& sources() { return sources_; }
  // The innermost line of user code: frames of C functions and of internal sources are skipped. With a column if the
  // line contains `token`.
  SourceSpan UserSpan(std::string_view token = {});
  // The same with the column of `text` in quotes, else of `text` itself.
  SourceSpan UserSpanOfText(std::string_view text);
  // During its lifetime, the user line is that of the caller of the running user function: for a builtin that checks
  // the arguments of that function (takes).
  class BlameCaller {
   public:
    explicit BlameCaller(ScriptState& state) : state_(state) { state_.blame_caller_ = true; }
    ~BlameCaller() { state_.blame_caller_ = false; }
    BlameCaller(const BlameCaller&) = delete;
    BlameCaller& operator=(const BlameCaller&) = delete;

   private:
    ScriptState& state_;
  };
  // Adds a diagnostic, unless one with the same text exists. The hundredth ends the script.
  void Report(Diagnostic diagnostic);
  // The same, at the user's line, with the caret under `token`.
  void Report(Finding finding, std::string message, std::string_view token = {}, std::string help = {});
  // In the order in which they were reported, but those of one file by line.
  Diagnostics TakeDiagnostics();

  // Keeps a C++ exception that reached the trampoline (guarded.h); Run throws it.
  void KeepException(std::exception_ptr exception) { exception_ = std::move(exception); }

 private:
  static void* Allocate(void* self, void* block, size_t old_size, size_t new_size);
  static void CountHook(lua_State* L, lua_Debug* record);
  void SetHook();
  bool OutOfTime() const;
  [[noreturn]] void RaiseTimeLimit();
  static int MessageHandler(lua_State* L);
  static int CallBody(lua_State* L);
  void ReportRaised();
  void Add(Diagnostic diagnostic);

  ScriptLimits limits_;
  lua_State* lua_ = nullptr;
  void* owner_ = nullptr;
  size_t used_ = 0;
  size_t peak_ = 0;
  size_t memory_cap_ = 0;
  int64_t steps_left_ = 0;
  int64_t cpu_start_ns_ = 0;
  bool parsing_ = false;
  int parsed_line_ = 0;
  bool blame_caller_ = false;
  bool dead_ = false;          // a limit was exceeded: every further instruction raises again
  HeldValue* held_ = nullptr;  // the first of a list
  Sources sources_;
  SourceSpan last_seen_;  // last line of the count hook: a failed allocation cannot query Lua
  Diagnostics diagnostics_;
  std::optional<Diagnostic> limit_;
  std::exception_ptr exception_;
  std::function<void(lua_State*, lua_Debug*)> on_chunk_end_;
};

}  // namespace moonshard
