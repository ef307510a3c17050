// `moonshard repl`: a session (dsl/program/repl/session.h) between the streams of this process.
#pragma once

#include "dsl/program/cli/options.h"

namespace moonshard {

// Typed lines: always kExitGood, unless the model cannot be loaded. Scripts: kExitFailed where a line failed, kExitUsage
// where the model, the mesh, the script or the plan that was asked for is bad; with a bad plan the lines are run all the
// same, for that is what they may be about.
int RunRepl(const ReplVerb& verb);

}  // namespace moonshard
