// RunMain: how both executables end: an exception becomes a message and an exit code, and output that could not be
// written is an error.
#pragma once

#include <functional>
#include <string>

#include "dsl/commands/cli/findings_output.h"

namespace moonshard {

// Runs `body` and returns its exit code. If it throws a PlanError, prints its findings and returns their exit code
// (ExitCodeOf). If it throws anything else, prints the text of the exception to stderr after the executable's name, and
// returns kExitDefect for an InternalError, else kExitFailed.
int RunMain(const std::string& executable, const std::function<int()>& body);

// Flushes stdout; the last call of an executable. If the flush or an earlier write failed (a full disk), reports
// kWriteFailed and returns kExitFailed in place of kExitSuccess; else returns `code`.
int EndOutput(int code, const FindingsOutput& options);

}  // namespace moonshard
