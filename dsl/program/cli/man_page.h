// The man page of the program, in the macros of man(7).
#pragma once

#include <string>

#include "dsl/program/cli/command_tree.h"

namespace moonshard {

std::string ManPage(const CommandTree& tree, const std::string& version);

}  // namespace moonshard
