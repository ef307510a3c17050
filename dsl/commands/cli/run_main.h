// RunMain: how both executables end: what they throw becomes a message and an exit code, and output that could not be
// written is an error.
#pragma once

#include <functional>
#include <string>

#include "dsl/commands/cli/findings_output.h"

namespace moonshard {

// The exit code of `body`, or of what it throws: kExitDefect for an InternalError, else kExitFailed, with the text on
// stderr after the executable's name.
int RunMain(const std::string& executable, const std::function<int()>& body);

// The last thing an executable does: flushes stdout. Where that, or a write before it, failed (a full disk), says so
// (kWriteFailed) and returns kExitFailed in place of a `code` that is kExitSuccess.
int EndOutput(int code, const FindingsOutput& options);

}  // namespace moonshard
