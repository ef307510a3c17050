// TreeFromText: a module tree from the text that ModuleTree::ToText writes, for data-driven tests.
#pragma once

#include <string>

#include "engine/layout/module_tree.h"

namespace moonshard {

// Lines: "path kind name:dtype[1, 2] ...", "(root)" for the root, "?" for an unknown kind, "(calls cannot be
// intercepted)" behind the kind, "tied: a.weight b.weight". A number range in a path repeats the line:
// "layers.{0..3}.norm". Throws std::runtime_error with the line on anything else.
ModuleTree TreeFromText(const std::string& text);

}  // namespace moonshard
