// Terminal: interactive lines, edited with libedit: history, completion, Ctrl-C, and output while the user types. Only
// this file uses libedit; without it (MOONSHARD_HAS_LIBEDIT) MakeTerminal returns nothing and lines are read plainly.
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

// For the terminal that standard input and output are; nullptr if they are not a terminal, or one that cannot move its
// cursor (TERM=dumb).
std::unique_ptr<LineReader> MakeTerminal(TerminalOptions options);

}  // namespace moonshard
