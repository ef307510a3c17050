// Trial: resolves the text of a suggested plan on small meshes, to find the rules that have errors on every mesh; their
// modules are left replicated (suggest.h, FindErrors); and on a mesh with cp, to count what its attention sends.
// Stage before: suggest.h. Stage after: the choice of a plan, `moonshard suggest`.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "dsl/language/bind/plan_inputs.h"
#include "engine/layout/module_tree.h"
#include "engine/plan/resolve/resolve_plan.h"

namespace moonshard {

// The largest number of ranks on which a suggestion is tried.
inline constexpr int64_t kMostTriedRanks = 8;

// Evaluates and resolves the plan on the mesh tp=`ranks`. The result has no compiled plan if the plan has errors. Only
// the config of `inputs` is used. `sequence`: whether the plan is evaluated with its option sequence_parallel.
Resolution TrySuggestion(const std::string& text, const PlanInputs& inputs,
                         const std::shared_ptr<const ModuleTree>& tree, int64_t ranks, bool sequence = false);

// Returns the errors that the plan has on every mesh. If the plan has errors on one rank, returns these errors. If the
// plan has errors on each number of ranks from 2 to kMostTriedRanks, returns the errors of the smallest such mesh that
// has errors other than sizes or heads that are not divisible by the number of ranks. Else returns nothing.
Diagnostics ErrorsOnAnyMesh(const std::string& text, const PlanInputs& inputs,
                            const std::shared_ptr<const ModuleTree>& tree, bool sequence);

// Returns the bytes of ContextRequest::sent: of the plan on `mesh`. Errors: those of the plan. An exchange of heads
// sends (cp - 1) / cp of the shard of tokens, or of the shard of heads if that is larger: a rank sends each of the
// others the heads that it needs, and fewer key heads than ranks are on several.
Result<int64_t> SentInContext(const std::string& text, const PlanInputs& inputs,
                              const std::shared_ptr<const ModuleTree>& tree, const MeshShape& mesh);

}  // namespace moonshard
