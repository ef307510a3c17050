// ShellCompletion: a script that completes verbs, their options and values: choices, shipped plans, findings, mesh
// axes. Options of a plan are not completed; other values are files.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "dsl/program/cli/command_tree.h"

namespace moonshard {

// "bash", "zsh", "fish".
std::span<const std::string> CompletionShells();
// The names that values consist of.
struct CompletionNames {
  std::vector<std::string> plans;     // shipped ones
  std::vector<std::string> findings;  // identifiers and names
  std::vector<std::string> axes;
};
// The script for one of these shells.
std::string ShellCompletion(const CommandTree& tree, const std::string& shell, const CompletionNames& names);

}  // namespace moonshard
