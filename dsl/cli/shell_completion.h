// Shell completion: a script that completes verbs, their options and the values that these have. Others than those listed
// are files; --plan also takes the shipped plans' names.
#pragma once

#include <span>
#include <string>

#include "dsl/cli/command_tree.h"

namespace moonshard {

// "bash", "zsh", "fish".
std::span<const std::string> CompletionShells();
// The script for one of these, given the names of the shipped plans.
std::string ShellCompletion(const CommandTree& tree, const std::string& shell, std::span<const std::string> plans);

}  // namespace moonshard
