// Completion: the candidates at a position of a line: commands and their arguments, paths of the loaded model's modules
// within quotes, builtins and their fields, keys of builtins and of the config, options, names of the session, files.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "dsl/commands/repl/line_runner.h"
#include "dsl/commands/repl/workspace.h"

namespace moonshard {

struct Completion {
  size_t begin = 0;                     // start of the text that the candidates replace
  std::vector<std::string> candidates;  // full replacements, sorted
  std::string suffix;  // to insert after a single candidate: the open quote, a blank, or "" if the text continues
};

struct CompletionInputs {
  const Workspace& workspace;
  LineRunner& runner;
  bool lua = false;  // the line continues unfinished Lua, so it is not a command
};

// Returns the candidates at byte `cursor` of `line`.
Completion CompleteLine(std::string_view line, size_t cursor, const CompletionInputs& inputs);
// The common prefix of all candidates.
std::string CommonBeginning(const std::vector<std::string>& candidates);

}  // namespace moonshard
