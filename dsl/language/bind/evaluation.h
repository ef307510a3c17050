// Evaluation: the state of one evaluation of a plan: the Lua state, the inputs of the plan, and the data that its
// builtins collect. Builtins access the Evaluation through Evaluation::From.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "dsl/language/bind/made_rules.h"
#include "dsl/language/bind/plan_inputs.h"
#include "dsl/language/state/script_state.h"

namespace moonshard {

// A file whose chunk is running: the plan itself, a plan that it extends, or a module that it requires.
struct RunningFile {
  std::string chunk;   // the name in diagnostics
  std::string folder;  // the directory in which require and extends search; "" for a built-in file or plain text
};

class Evaluation {
 public:
  explicit Evaluation(const PlanInputs& inputs);

  // The Evaluation that owns `L`.
  static Evaluation& From(lua_State* L);

  const PlanInputs& inputs() const { return inputs_; }
  // Prepares the evaluation for the next line of a session: sets the mesh and the given options, clears the declared
  // options, the running files, the recorded rules and the count of files, and starts a new budget
  // (ScriptState::Renew).
  void Renew(const MeshShape& mesh, std::map<std::string, JsonValue> options);
  ScriptState& state() { return state_; }
  // The options that plans have declared so far, by name.
  std::map<std::string, DeclaredOption>& options() { return options_; }
  // The old names of renamed options, under which a value is still accepted.
  std::set<std::string>& old_options() { return old_options_; }
  // The stack of running files; the innermost is last.
  std::vector<RunningFile>& running() { return running_; }
  MadeRules& made_rules() { return made_rules_; }
  // The place of the last plan { ... } that was evaluated; empty before the first.
  SourceSpan& last_plan() { return last_plan_; }
  // Counts one more file of this evaluation. Ends the script (kScriptLimit) if the count exceeds ScriptLimits::files.
  void CountFile();

 private:
  PlanInputs inputs_;
  ScriptState state_;
  std::map<std::string, DeclaredOption> options_;
  std::set<std::string> old_options_;
  std::vector<RunningFile> running_;
  MadeRules made_rules_;
  SourceSpan last_plan_;
  int files_ = 0;
};

// Adds all builtins except require and extends (eval/) and the styles of stdlib.
void AddBuiltins(lua_State* L);

// Each of these functions adds one group of builtins. AddBuiltins calls all of them.
void AddLayoutBuiltins(lua_State* L);
void AddStyleBuiltins(lua_State* L);
void AddSectionBuiltins(lua_State* L);
void AddRuleBuiltins(lua_State* L);
void AddPlanBuiltins(lua_State* L);
void AddOptionBuiltins(lua_State* L);
void AddInputBuiltins(lua_State* L);
void AddModelBuiltins(lua_State* L);

}  // namespace moonshard
