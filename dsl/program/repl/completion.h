// Completion: what can stand at a place of a line: commands and their arguments, paths of the loaded model's modules inside
// quotes, words of the language and their fields, keys of the config, options, names of the session, files.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "dsl/program/repl/line_runner.h"
#include "dsl/program/repl/workspace.h"

namespace moonshard {

struct Completion {
  size_t begin = 0;                     // of the word that the candidates stand for
  std::vector<std::string> candidates;  // whole words, sorted
  std::string suffix;                   // behind a lone candidate: the quote that is open, a blank, "" where it goes on
};

struct CompletionInputs {
  const Workspace& workspace;
  LineRunner& runner;
  bool lua = false;  // the line goes on an unfinished text: it is no command
};

Completion CompleteLine(std::string_view line, size_t cursor, const CompletionInputs& inputs);
// What all candidates begin with.
std::string CommonBeginning(const std::vector<std::string>& candidates);

}  // namespace moonshard
