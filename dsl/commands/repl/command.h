// Commands: the lines that begin with a colon. Each command reads its arguments, queries or changes the workspace, and
// returns tables; no command prints. :help, completion and the documentation are made from one table of all commands.
#pragma once

#include <functional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "dsl/commands/repl/line_runner.h"
#include "dsl/commands/repl/table.h"
#include "dsl/commands/repl/workspace.h"
#include "engine/core/base/diagnostic.h"

namespace moonshard {

// The result of a line.
struct Answer {
  std::vector<Table> tables;       // data
  std::string text;                // a page to read; mode table shows it in place of the tables
  std::vector<std::string> notes;  // shown beside the tables
  Diagnostics diagnostics;
  bool failed = false;   // the line failed, although no diagnostic is an error; an error is a failure too
  bool changed = false;  // the workspace changed, so later lines of Lua need its new inputs
  bool quit = false;
};

// The state of commands between lines, besides the workspace.
struct CommandState {
  OutputMode mode = OutputMode::kTable;
  bool watch = false;
  std::vector<std::string> tried;       // Lua of the rules of :try that compiled: at("...", colwise {})
  std::vector<std::string> good_lines;  // the lines so far that did not fail, for :save
  // Runs `moonshard ARGUMENTS` with the stdin, stdout and stderr of this process, and returns the exit code. Empty if
  // moonshard cannot be started.
  std::function<int(const std::vector<std::string>& words)> run_moonshard;
  std::vector<std::string> moonshard_arguments;  // appended to those arguments
};

struct CommandCall {
  Workspace& workspace;
  LineRunner& runner;
  CommandState& state;
  std::string arguments;  // without blanks around it
  LinePlace place;        // of the line, with its text as typed
};

// The kind of a command's argument, for completion.
enum class ArgumentKind { kNone, kPath, kPattern, kTry, kLayer, kPlan, kFile, kMesh, kOption, kMode, kTopic, kSwitch };

struct CommandInfo {
  const char* name;       // ":why"
  const char* arguments;  // "PATH"
  const char* doc;        // one line
  const char* more;       // further help text; may be ""
  ArgumentKind argument;
  Answer (*run)(CommandCall& call);
};

// In the order of :help.
std::span<const CommandInfo> AllCommands();
// Returns the command with this name or unique abbreviation, else nullptr.
const CommandInfo* FindCommand(std::string_view name);

// An answer with one error at the line: `message`, and the suggested fix `help`.
Answer Refused(const CommandCall& call, std::string message, std::string help = "");
// Returns the diagnostics; a diagnostic without a source location, or about the file that the arguments name, gets the
// location of the line, because the arguments of the line caused it.
Diagnostics AtLine(const CommandCall& call, Diagnostics diagnostics);
// Return an error at the line unless the requirement is met. NeedModel: a model is loaded. NeedPlan: also, the plan
// evaluates. NeedCompiled: also, the plan compiles.
std::optional<Answer> NeedModel(const CommandCall& call);
std::optional<Answer> NeedPlan(const CommandCall& call);
std::optional<Answer> NeedCompiled(const CommandCall& call);

// A short description of the session: model, plan, mesh, rank, options, and the totals of the plan or the state "the
// plan has errors".
Table Summary(Workspace& workspace);
// The differences between two plans in three tables: rules with another number of matches, modules with other layouts
// or redistributions, and totals. Empty tables are omitted.
std::vector<Table> Changes(const CompiledPlan& before, const PlanTotals& before_totals, const CompiledPlan& after,
                           const PlanTotals& after_totals);
// The errors in `now`, and its warnings and notes that are not in `before`.
Diagnostics NewOnes(const Diagnostics& now, const Diagnostics& before);
// Resolves the plan again. Returns its new diagnostics, and the changes compared with the last plan that compiled.
Answer ResolveAgain(Workspace& workspace);

// A pattern as commands accept it: a glob with or without quotes, re[[...]], re"..." or numbered"...".
struct TypedPattern {
  std::string text;
  PatternSyntax syntax = PatternSyntax::kGlob;
};
TypedPattern ReadPattern(const std::string& text);
// The source of a module's layouts: "plans/llama.lua:12", "default, plans/llama.lua:20" or "no rule".
std::string RuleText(const CompiledPlan& plan, const ModuleLayouts& layouts);

// The topics of :help: commands, builtins, their keys, options of the plan, findings; sorted.
std::vector<std::string> HelpTopics(const Workspace& workspace);

// The handlers, by file.
Answer RunTree(CommandCall& call);  // commands_model.cc
Answer RunMatch(CommandCall& call);
Answer RunWhy(CommandCall& call);        // command_why.cc
Answer RunUnmatched(CommandCall& call);  // commands_rules.cc
Answer RunConflicts(CommandCall& call);
Answer RunFlow(CommandCall& call);  // commands_cost.cc
Answer RunCost(CommandCall& call);
Answer RunTry(CommandCall& call);  // commands_change.cc
Answer RunDiff(CommandCall& call);
Answer RunSave(CommandCall& call);
Answer RunLoad(CommandCall& call);  // commands_session.cc
Answer RunReload(CommandCall& call);
Answer RunWatch(CommandCall& call);
Answer RunMesh(CommandCall& call);
Answer RunOption(CommandCall& call);
Answer RunRank(CommandCall& call);
Answer RunVerify(CommandCall& call);
Answer RunMode(CommandCall& call);
Answer RunHelp(CommandCall& call);  // help.cc
Answer RunQuit(CommandCall& call);

}  // namespace moonshard
