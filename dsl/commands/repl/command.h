// Commands: the lines that begin with a colon. Each reads its arguments, queries or changes the workspace, and returns
// tables; none prints. :help, completion and the documentation derive from the one table of commands.
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
  std::string text;                // a page to read, in mode table in place of the tables
  std::vector<std::string> notes;  // shown beside the tables
  Diagnostics diagnostics;
  bool failed = false;   // also where a diagnostic is an error
  bool changed = false;  // the workspace changed: lines of Lua must see it
  bool quit = false;
};

// The state of commands between lines, besides the workspace.
struct CommandState {
  OutputMode mode = OutputMode::kTable;
  bool watch = false;
  std::vector<std::string> tried;       // Lua of the rules that :try made and that compiled: at("...", colwise {})
  std::vector<std::string> good_lines;  // every line so far that did not fail
  // Runs `moonshard ARGUMENTS` on the streams of this process and returns its exit code; empty where it cannot
  // be started.
  std::function<int(const std::vector<std::string>& words)> run_moonshard;
  std::vector<std::string> moonshard_arguments;  // appended to those arguments
};

struct CommandCall {
  Workspace& workspace;
  LineRunner& runner;
  CommandState& state;
  std::string arguments;  // without blanks around it
  LinePlace place;        // with the line as it was typed
};

// What an argument is, for completion.
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
// The command with this name or unique abbreviation; nullptr otherwise.
const CommandInfo* FindCommand(std::string_view name);

// A result with one error at the line: the mistake, and a suggested fix.
Answer Refused(const CommandCall& call, std::string message, std::string help = "");
// The same diagnostics, those without a place or about the file that the arguments name at the line: what is wrong with
// its arguments.
Diagnostics AtLine(const CommandCall& call, Diagnostics diagnostics);
// Refused if no model is loaded, if the plan did not evaluate, or if it did not compile: with its errors.
std::optional<Answer> NeedModel(const CommandCall& call);
std::optional<Answer> NeedPlan(const CommandCall& call);
std::optional<Answer> NeedCompiled(const CommandCall& call);

// The session in a few lines: model, plan, mesh, rank, options, and how far the plan resolves.
Table Summary(Workspace& workspace);
// What changed between two plans: rules with other matches, modules, and totals. Empty tables are omitted.
std::vector<Table> Changes(const CompiledPlan& before, const PlanTotals& before_totals, const CompiledPlan& after,
                           const PlanTotals& after_totals);
// Errors, and warnings and notes that were not reported before.
Diagnostics NewOnes(const Diagnostics& now, const Diagnostics& before);
// Resolves the plan again; returns its diagnostics and the changes compared with the plan before.
Answer ResolveAgain(Workspace& workspace);

// A pattern as commands take it: a glob as it is or in quotes, re[[...]], re"..." or numbered"...".
struct TypedPattern {
  std::string text;
  PatternSyntax syntax = PatternSyntax::kGlob;
};
TypedPattern ReadPattern(const std::string& text);
// "plans/llama.lua:12", or "default" or "no rule"; of a module's layouts.
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
