// Factors: the factors of a plan's adapters as modules of the live model.
// Part of apply: applied_plan.cc calls it between the checks and the sharding of parameters.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "engine/plan/compile/compiled_plan.h"
#include "engine/runtime/apply/live_tree.h"
#include "engine/runtime/nn/boundary.h"

namespace moonshard {

// Registers the factors of plan.adapted as modules `lora_A` and `lora_B` below the adapted modules, adds them to
// `live`, whose tree becomes plan.tree, and freezes every other parameter (requires_grad_(false)). Does nothing for a
// plan without adapters. Each factor is a full tensor: A is uniform between -1/sqrt(in) and 1/sqrt(in), drawn from its
// path, so that it is the same on every rank and on every mesh; B is zero. For a lookup, as in PEFT, A is zero and B is
// drawn from the standard normal distribution: a column of A gets a gradient from its id alone. A factor has the device
// of the adapted weight, or the CPU if the weight has no memory. If the weight has no memory yet and gets
// `deferred_type` (ApplyOptions), so do its factors, unless that is a 16-bit type or the adapter declares a dtype.
// Appends to `undo` what takes the changes of the model back.
void InjectFactors(LiveTree& live, const CompiledPlan& plan, std::optional<c10::ScalarType> deferred_type,
                   std::vector<std::function<void()>>& undo);

// Returns the term of `adapter` for the module at `path`, whose factors InjectFactors has registered.
std::shared_ptr<const LowRank> LowRankOf(const LiveTree& live, const std::string& path, const Adapter& adapter);

}  // namespace moonshard
