// SourceOf: the plan's line that decides about a module, for messages.
// Part of compiled_plan.h.
#pragma once

#include "engine/core/base/diagnostic.h"
#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {

// Of the rule, or of default(style); of an unclaimed module a place that is not known. Belongs to the plan.
const SourceSpan& SourceOf(const CompiledPlan& plan, const ModuleSteps& steps);
// Of the rule that names the parameter by its path where one does.
const SourceSpan& SourceOf(const CompiledPlan& plan, const ModuleSteps& steps, size_t param);

}  // namespace moonshard
