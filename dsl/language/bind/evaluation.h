// Evaluation: the state of one evaluation of a plan: the Lua state, the inputs of the plan, and what its builtins
// collect. Builtins reach it through Evaluation::From.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "dsl/language/bind/made_rules.h"
#include "dsl/language/bind/plan_inputs.h"
#include "dsl/language/state/script_state.h"

namespace moonshard {

// A file whose chunk is running: the plan itself, one it extends or one it requires.
struct RunningFile {
  std::string chunk;   // as diagnostics name it
  std::string folder;  // the directory of its own files; empty: none (text without a file, built-in)
};

class Evaluation {
 public:
  explicit Evaluation(const PlanInputs& inputs);

  static Evaluation& From(lua_State* L);

  const PlanInputs& inputs() const { return inputs_; }
  // For the next line of a session: a fresh budget, no option declared, no file running (ScriptState::Renew).
  void Renew(const MeshShape& mesh, std::map<std::string, JsonValue> options);
  ScriptState& state() { return state_; }
  std::map<std::string, DeclaredOption>& options() { return options_; }
  // Names that options had before and may be given under still.
  std::set<std::string>& old_options() { return old_options_; }
  std::vector<RunningFile>& running() { return running_; }
  MadeRules& made_rules() { return made_rules_; }
  // The line of the last plan { ... } that was evaluated; empty if there was none.
  SourceSpan& last_plan() { return last_plan_; }
  // Counts a file that is about to be read; raises a Lua error beyond the limit.
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

// Adds all builtins except those that read files (require, extends: eval/) and those of stdlib.
void AddBuiltins(lua_State* L);

// One group of builtins each; AddBuiltins calls them.
void AddLayoutBuiltins(lua_State* L);
void AddStyleBuiltins(lua_State* L);
void AddSectionBuiltins(lua_State* L);
void AddRuleBuiltins(lua_State* L);
void AddPlanBuiltins(lua_State* L);
void AddOptionBuiltins(lua_State* L);
void AddInputBuiltins(lua_State* L);
void AddModelBuiltins(lua_State* L);

}  // namespace moonshard
