// Verbs: the verbs that need no tensors. Each writes data to stdout and diagnostics to stderr, and returns the exit
// code.
#pragma once

#include "dsl/commands/cli/options.h"
#include "dsl/planning/resolve_model/resolve_model.h"

namespace moonshard {

// 0: success. 1: `check` found errors, including a plan or model that cannot be read, or the work failed. 2: usage
// error, or an invalid plan or model under any other verb. 3: a bug in moonshard.
inline constexpr int kExitSuccess = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitDefect = 3;

// The exit code of a verb that ends with these errors: kExitUsage if an error is about a plan, a model or a named file,
// else kExitFailed.
int ExitCodeOf(const Diagnostics& errors);

int RunExplain(const ExplainVerb& verb);
// Resolves the plan that `verb` explains, and reports all findings, including errors in --rank and --tokens. Sets
// `good` to whether the plan compiled and no finding is an error.
Resolution ResolveToExplain(const ExplainVerb& verb, bool& good);
// `trials`: runs the operators of a program (AddProgramKnowledge), of which only moonshard-run is capable.
int RunCheck(const CheckVerb& verb, TrialsOf trials = {});
int RunExplainFinding(const ExplainFindingVerb& verb);
int RunImport(const ImportVerb& verb);
int RunSuggest(const SuggestVerb& verb, TrialsOf trials = {});  // as for RunCheck
// Runs a session (dsl/commands/repl/session.h) on stdin, stdout and stderr. Interactive: kExitSuccess, or kExitUsage if
// the model or the mesh is invalid. Scripts: kExitFailed if a line failed, kExitUsage if the model, the mesh, the
// script or the plan is invalid. With an invalid plan the lines are still executed, because they may debug it.
int RunRepl(const ReplVerb& verb);
// Returns kExitFailed if the form cannot express a part of the plan; that part is omitted.
int RunExport(const ExportVerb& verb);

// RunShard and RunMerge write their progress to stderr and, with --json, a summary to stdout.
int RunShard(const ShardVerb& verb);
int RunMerge(const MergeVerb& verb);

}  // namespace moonshard
