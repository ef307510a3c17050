// Terminal: lines typed by a person, edited with libedit: history, completion, Ctrl-C, and what happens meanwhile.
// The one place that knows libedit; without it (MOONSHARD_HAS_LIBEDIT) MakeTerminal answers nothing and plain lines serve.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "dsl/program/repl/completion.h"
#include "dsl/program/repl/history_file.h"
#include "dsl/program/repl/reader.h"

namespace moonshard {

struct TerminalOptions {
  std::function<Completion(std::string_view line, size_t cursor)> complete;
  Idle idle;
  std::string history;  // a file; "": none is kept
};

// For the terminal that standard input and output are; nullptr where they are none, or one that cannot move its cursor
// (TERM=dumb).
std::unique_ptr<LineReader> MakeTerminal(TerminalOptions options);

}  // namespace moonshard
