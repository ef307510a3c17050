// The verbs that need no tensor. Each writes data to stdout, diagnostics to stderr, and returns the exit code.
#pragma once

#include "dsl/commands/cli/options.h"

namespace moonshard {

// 0 success; 1 check found errors, also in a plan or model that cannot be read, or the work failed; 2 usage, or a bad
// plan or model under any other verb; 3 a bug in moonshard.
inline constexpr int kExitSuccess = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitDefect = 3;

// The exit code of a verb that ends with these errors: kExitUsage where a plan, a model or a named file is at fault,
// else kExitFailed.
int ExitCodeOf(const Diagnostics& errors);

int RunExplain(const ExplainVerb& verb);
// Resolves the plan that the verb is about and reports all findings, also about --rank and --tokens. `good`: whether
// there are no errors among them.
Resolution ResolveToExplain(const ExplainVerb& verb, bool& good);
int RunCheck(const CheckVerb& verb);
int RunExplainFinding(const ExplainFindingVerb& verb);
int RunImport(const ImportVerb& verb);
int RunSuggest(const SuggestVerb& verb);
// A session (dsl/commands/repl/session.h) between the streams of this process. Interactive lines: always kExitSuccess,
// unless the model cannot be loaded. Scripts: kExitFailed if a line failed, kExitUsage if the model, the mesh, the
// script or the plan is invalid; with an invalid plan the lines are still executed, because they may debug it.
int RunRepl(const ReplVerb& verb);
// kExitFailed where the other form cannot express a part of the plan, which is left out.
int RunExport(const ExportVerb& verb);

// Progress on stderr, with --json the summary on stdout.
int RunShard(const ShardVerb& verb);
int RunMerge(const MergeVerb& verb);

}  // namespace moonshard
