// `moonshard repl`: a session (dsl/program/repl/session.h) between the streams of this process.
#pragma once

#include "dsl/program/cli/options.h"

namespace moonshard {

// Interactive lines: always kExitSuccess, unless the model cannot be loaded. Scripts: kExitFailed if a line failed,
// kExitUsage if the model, the mesh, the script or the plan is invalid; with an invalid plan the lines are still
// executed, because they may debug it.
int RunRepl(const ReplVerb& verb);

}  // namespace moonshard
