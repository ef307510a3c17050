// Shell completion: a script that completes verbs, their options and the values that these have: choices, shipped plans,
// findings, axes of a mesh. Options of a plan are not known to a shell, so nothing is offered; other values are files.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "dsl/program/cli/command_tree.h"

namespace moonshard {

// "bash", "zsh", "fish".
std::span<const std::string> CompletionShells();
// The names that values are made of.
struct CompletionNames {
  std::vector<std::string> plans;     // shipped ones
  std::vector<std::string> findings;  // identifiers and names
  std::vector<std::string> axes;
};
// The script for one of these shells.
std::string ShellCompletion(const CommandTree& tree, const std::string& shell, const CompletionNames& names);

}  // namespace moonshard
