// ScriptState: a Lua state for one evaluation, with exact accounting of memory, a budget of steps and CPU time, and the
// diagnostics of the script. Each evaluation uses a new ScriptState, except that all lines of a session
// (dsl/commands/repl) use the same ScriptState, with a new budget for each line.
//
// Stages after: sandbox (the names of a plan), bind (the plan language), eval (the public entry points).
//
// There are two kinds of failure. A builtin that is called wrongly calls Report() and returns poison (poison.h), so
// that the script continues and one run reports the other mistakes too. A limit, or an error that Lua raises, ends
// Run().
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

  // The ScriptState that owns `L`.
  static ScriptState& From(lua_State* L);
  const ScriptLimits& limits() const { return limits_; }
  // A pointer to an object of the layer above (Evaluation), for the C functions of that layer. Not owned.
  void set_owner(void* owner) { owner_ = owner; }
  void* owner() const { return owner_; }

  // Calls `body` with the state in protected mode. If Lua raises an error in `body`, the error becomes a diagnostic and
  // Run returns false. If a C++ exception leaves a C function (a defect of moonshard), Run rethrows the exception. Lua
  // functions may be called only within `body`. During the call this thread has the C locale, so that comparisons of
  // strings and conversions of numbers do not depend on the locale of the process. Starts a new budget of CPU time.
  bool Run(const std::function<void(lua_State*)>& body);

  // Starts a new budget of steps and drops the diagnostics, for the next line of a session, also after a line that
  // exceeded a limit. Collects garbage; memory that is still in use counts towards the limit.
  void Renew();
  // Sets a function that is called at the end of every chunk (not of functions within the chunk) while the locals of
  // the chunk exist, with the record for lua_getlocal. The function may raise a Lua error.
  void OnChunkEnd(std::function<void(lua_State*, lua_Debug*)> on_chunk_end);

  // Compiles a text as a chunk called `name` ("@plan.lua"). Returns the status of lua_load and pushes the function or
  // Lua's message. No count hook runs while Lua parses, so Parse also checks the CPU time and raises a Lua error if the
  // time is used up. Parse does not report a syntax error; the caller does.
  int Parse(std::string_view text, const std::string& name);
  // The line of the text at which the last Parse ended.
  int parsed_line() const { return parsed_line_; }

  // Subtracts `steps` from the budget. Ends the script (RaiseLimit) if the budget is used up. For library functions
  // whose work is not bounded by the number of Lua instructions.
  void Charge(size_t steps);
  // Ends the script with kScriptLimit: raises a Lua error that the script cannot catch.
  [[noreturn]] void RaiseLimit(std::string message, std::string help);
  // TakeMemory adds `bytes`, the size of C++ values that userdata hold, to the accounted memory; GiveMemory subtracts
  // `bytes`. If the sum would exceed the limit, TakeMemory collects garbage; if the sum would still exceed the limit,
  // TakeMemory ends the script (RaiseLimit).
  void TakeMemory(size_t bytes);
  void GiveMemory(size_t bytes) { used_ -= bytes; }
  // Accounts for memory during the lifetime of the object. Lua errors are C++ exceptions here, so the destructor runs
  // also when Lua raises an error.
  class Reserved {
   public:
    Reserved(ScriptState& state, size_t bytes) : state_(state), bytes_(bytes) { state_.TakeMemory(bytes); }
    ~Reserved() { state_.GiveMemory(bytes_); }
    Reserved(const Reserved&) = delete;
    Reserved& operator=(const Reserved&) = delete;
    // Transfers the memory to another owner, which must call GiveMemory.
    void Keep() { bytes_ = 0; }

   private:
    ScriptState& state_;
    size_t bytes_;
  };
  // The base of a C++ value that a userdata represents. The value is destroyed when Lua collects the userdata, at the
  // latest with the ScriptState: Lua may skip the __gc metamethod when memory runs out.
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
  // Hold takes ownership of the value; End destroys the value.
  void Hold(std::unique_ptr<HeldValue> value);
  void End(HeldValue* value);
  // Memory in use, and the peak since the construction or the last Renew, in bytes.
  size_t memory_used() const { return used_; }
  size_t memory_peak() const { return peak_; }

  Sources& sources() { return sources_; }
  // Returns the innermost running line of user code, with a column if the line contains `token`. Frames of C functions
  // and of internal sources are skipped; an internal line is returned only if there is no user code.
  SourceSpan UserSpan(std::string_view token = {});
  // As UserSpan, with the column of `text` in quotes if the line contains it in quotes, else the column of the token
  // `text`.
  SourceSpan UserSpanOfText(std::string_view text);
  // During the lifetime of the object, UserSpan returns the line of the caller of the running user function. For a
  // builtin that checks the arguments of that function (takes).
  class BlameCaller {
   public:
    explicit BlameCaller(ScriptState& state) : state_(state) { state_.blame_caller_ = true; }
    ~BlameCaller() { state_.blame_caller_ = false; }
    BlameCaller(const BlameCaller&) = delete;
    BlameCaller& operator=(const BlameCaller&) = delete;

   private:
    ScriptState& state_;
  };
  // Adds a diagnostic unless a diagnostic with the same text exists. A report after 100 diagnostics ends the script.
  void Report(Diagnostic diagnostic);
  // As above, at UserSpan(token), with the caret under `token`.
  void Report(Finding finding, std::string message, std::string_view token = {}, std::string help = {});
  // Returns and removes all diagnostics: files in the order of their first report, and by line within a file.
  Diagnostics TakeDiagnostics();

  // Stores a C++ exception that left a C function (guarded.h); Run rethrows the exception.
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
  bool dead_ = false;          // a limit was exceeded, so every further instruction raises an error
  HeldValue* held_ = nullptr;  // the head of a linked list
  Sources sources_;
  SourceSpan last_seen_;  // the line at the last count hook, for a failed allocation, which cannot query Lua
  Diagnostics diagnostics_;
  std::optional<Diagnostic> limit_;
  std::exception_ptr exception_;
  std::function<void(lua_State*, lua_Debug*)> on_chunk_end_;
};

}  // namespace moonshard
