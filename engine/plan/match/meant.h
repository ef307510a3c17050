// Meant: what the author of a pattern that matches nothing may have meant: a real path that is near, or a mistake that
// people make with patterns (one * for several components, brackets for braces, slashes for dots). For the help of
// findings. Stage: match, beside it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/layout/module_tree.h"
#include "engine/plan/plan/plan.h"

namespace moonshard {

// A sentence or two; never empty.
std::string WhatWasMeant(const ModuleTree& tree, const Rule& rule);
// The same for a pattern of a section (fsdp, recompute, keep_dtype), which can match any of `paths`.
std::string WhatWasMeant(const std::vector<std::string_view>& paths, const ModulePattern& pattern);

}  // namespace moonshard
