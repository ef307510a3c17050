// Trial: a suggested plan's text on so many ranks: what of it no mesh can take is left replicated (suggest.h,
// FindErrors).
// Stage before: suggest.h. Stage after: the choice of a plan, `moonshard suggest`.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "dsl/language/bind/plan_inputs.h"
#include "engine/layout/module_tree.h"
#include "engine/plan/resolve/resolve_plan.h"

namespace moonshard {

// The most ranks that a suggestion is tried on.
inline constexpr int64_t kMostTriedRanks = 8;

// The plan on tp = `ranks`, evaluated and resolved; without a compiled plan where it has errors. Of `inputs` only the
// config. `sequence`: with its option sequence_parallel.
Resolution TrySuggestion(const std::string& text, const PlanInputs& inputs,
                         const std::shared_ptr<const ModuleTree>& tree, int64_t ranks, bool sequence = false);

// The errors that another number of ranks cannot cure: any on one rank, or, if no number of several ranks is without,
// those that are not about sizes that the ranks do not divide.
Diagnostics ErrorsOnAnyMesh(const std::string& text, const PlanInputs& inputs,
                            const std::shared_ptr<const ModuleTree>& tree, bool sequence);

}  // namespace moonshard
