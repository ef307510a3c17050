// Terminal: reads interactive lines, edited with libedit: history, completion, Ctrl-C, and output while the user types.
// Only terminal.cc uses libedit; in a build without libedit (MOONSHARD_HAS_LIBEDIT) MakeTerminal returns nullptr, and
// lines are read without editing.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "dsl/commands/repl/completion.h"
#include "dsl/commands/repl/history_file.h"
#include "dsl/commands/repl/reader.h"

namespace moonshard {

struct TerminalOptions {
  std::function<Completion(std::string_view line, size_t cursor)> complete;
  Idle idle;
  std::string history;  // a file; "": no history
};

// Returns a reader for the terminal of standard input and output; nullptr if they are not a terminal, or if the
// terminal cannot move its cursor (TERM=dumb).
std::unique_ptr<LineReader> MakeTerminal(TerminalOptions options);

}  // namespace moonshard
