// Programs: what tests of the programs share. ExecutablePath() is the path of the built `moonshard`.
#pragma once

#include <string>
#include <vector>

#include "tests/support/paths.h"
#include "tests/support/process.h"

namespace moonshard::test {

using Words = std::vector<std::string>;  // of a command line

// Recorded models: kParity + "llama_gqa" is a model directory.
inline const std::string kParity = SourcePath("tests/parity/");
inline const std::string kModel = kParity + "llama_gqa";
// Plans, each with one known fault.
inline const std::string kPlanted = SourcePath("tests/dsl/commands/run/planted/");

inline Outcome Run(const Words& words, const Words& variables = {}) {
  return RunExecutable(ExecutablePath(), words, variables);
}

}  // namespace moonshard::test
