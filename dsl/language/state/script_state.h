// ScriptState: one Lua state for one evaluation, with exact accounting of memory, a budget of steps and of CPU time,
// and the place where everything there is to say about the script is collected. Nothing outlives it: the next
// evaluation starts from a fresh one. The lines of a session (dsl/program/repl) share one, each with a budget of its own.
//
// Stages after: sandbox (which names a plan can see), bind (the plan language), eval (the public entry points).
//
// Two ways of failing. A word that was used wrongly is Report()ed and answers with poison (poison.h), so that the script
// goes on and its other mistakes are found in the same run. What cannot go on (a limit, an error that Lua raises) ends
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

  static ScriptState& From(lua_State* L);
  const ScriptLimits& limits() const { return limits_; }
  // For the layer above: its own object, reached from C functions.
  void set_owner(void* owner) { owner_ = owner; }
  void* owner() const { return owner_; }

  // Runs `body` with the state, protected: an error that Lua raises in it becomes a diagnostic. False where it was
  // ended by one. A C++ exception that left a C function (a defect of ours) goes on to the caller. Lua's functions may
  // be called within a body only.
  bool Run(const std::function<void(lua_State*)>& body);

  // A fresh budget, with nothing said so far: for the next line of a session, also after one that passed a limit. Collects
  // garbage; what the line before left in use still counts.
  void Renew();
  // Called at the end of every chunk (not of its functions) while its locals are still there, with the record that
  // lua_getlocal takes. It may raise a Lua error.
  void OnChunkEnd(std::function<void(lua_State*, lua_Debug*)> on_chunk_end);

  // lua_load of a text as a chunk called `name` ("@plan.lua"): Lua's status, its function or message on top of the stack.
  // No instruction runs while Lua reads, so the CPU time is looked at here too: raises a Lua error where it is used up.
  // An error is the caller's to report.
  int Parse(std::string_view text, const std::string& name);

  // Takes `steps` off the budget; raises a Lua error where it is used up. For library functions whose work is not
  // bounded by the number of instructions.
  void Charge(size_t steps);
  // Ends the script: raises a Lua error that nothing in it can outlive. The diagnostic is kScriptLimit.
  [[noreturn]] void RaiseLimit(std::string message, std::string help);
  // Memory of C++ values that userdata hold. Take raises a Lua error beyond the limit, after a garbage collection.
  void TakeMemory(size_t bytes);
  void GiveMemory(size_t bytes) { used_ -= bytes; }
  // A C++ value that userdata stand for. It lives until its collection, and at the longest as long as the state: where
  // memory runs out, Lua may pass over the function that collects it.
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
  // The innermost line of the user's: frames of C functions and of internal sources are passed over. With a column where
  // `token` stands in it.
  SourceSpan UserSpan(std::string_view token = {});
  // The same with the column where `text` stands in quotes, else where it stands at all.
  SourceSpan UserSpanOfText(std::string_view text);
  // While one lives, the user's line is that of whoever called the user's function that runs: for a word that judges what
  // that function was given.
  class BlameCaller {
   public:
    explicit BlameCaller(ScriptState& state) : state_(state) { state_.blame_caller_ = true; }
    ~BlameCaller() { state_.blame_caller_ = false; }
    BlameCaller(const BlameCaller&) = delete;
    BlameCaller& operator=(const BlameCaller&) = delete;

   private:
    ScriptState& state_;
  };
  // Adds a diagnostic; one that was said before with the same text is left out. Ends the script after the hundredth.
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
  bool blame_caller_ = false;
  bool dead_ = false;          // a limit was passed: every further instruction raises again
  HeldValue* held_ = nullptr;  // the first of a list
  Sources sources_;
  SourceSpan last_seen_;  // where the count hook last was: an allocation that fails cannot ask Lua
  Diagnostics diagnostics_;
  std::optional<Diagnostic> limit_;
  std::exception_ptr exception_;
  std::function<void(lua_State*, lua_Debug*)> on_chunk_end_;
};

}  // namespace moonshard
