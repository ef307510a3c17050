// The finding for a module whose calls must be intercepted and cannot be: one text for rules, fsdp and recompute.
#pragma once

#include <string>

#include "engine/core/base/diagnostic.h"
#include "engine/layout/module_tree.h"

namespace moonshard {

// kNotHookable at the plan line `where`; `consequence` ends the message: "style 'x' would not run".
Diagnostic NotHookable(const Module& module, const std::string& consequence, const SourceSpan& where);

}  // namespace moonshard
