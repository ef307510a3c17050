// A plan that runs and shards almost nothing is almost always a mistake: its rules are about another tree. Whether a
// compiled plan is one. Stage: after compile, for the program's findings.
#pragma once

#include <optional>

#include "engine/core/base/diagnostic.h"
#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {

// kMostlyReplicated, with the largest parameters that stay replicated, where ranks share the model (some axis above 1)
// and the plan shards less than half of its elements. Nothing otherwise; nothing too where it shards none at all, which
// is the finding of an unused axis. Tied tensors count once, buffers do not count.
std::optional<Diagnostic> FindMostlyReplicated(const CompiledPlan& plan);

}  // namespace moonshard
