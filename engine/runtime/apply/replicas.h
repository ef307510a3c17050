// Replicas: tensors that several ranks hold alike, which a step keeps equal only as long as they began equal
// and none of them was written to alone.
// Stage before: apply. Stage after: the host's training loop.
#pragma once

#include <string>
#include <vector>

#include "engine/core/base/diagnostic.h"
#include "engine/runtime/apply/applied_plan.h"

namespace moonshard {

// Every parameter and buffer becomes, to the bit, what the first of the ranks that hold the same shard has. For models
// that each rank initialised by itself. Collective over the axes that the plan uses: one flat all-reduce an axis and
// dtype.
void BroadcastReplicas(const AppliedPlan& model);

// One kRanksDisagree for each parameter or buffer whose bytes differ between ranks that hold the same shard, with the
// ranks: of the groups that this rank is in. Collective over the axes that the plan uses: one all-gather of a number a
// tensor each. Key/value heads that only some ranks of an axis share are not compared.
Diagnostics FindDrift(const AppliedPlan& model);

}  // namespace moonshard
