// Replicas: values that several ranks hold alike. A step keeps them equal only while no rank alone writes to one, so
// they can be compared, or broadcast, between steps. Before a plan is applied: apply/initial_values.h.
#pragma once

#include "engine/core/base/diagnostic.h"

namespace moonshard {

class AppliedPlan;

// Every parameter and buffer becomes, to the bit, what the first of the ranks that hold the same shard has. For models
// that each rank initialised by itself. Collective over the axes that the plan uses: one flat all-reduce of bytes an
// axis.
void BroadcastReplicas(const AppliedPlan& model);

// One kRanksDisagree for each parameter or buffer whose bytes differ between ranks that hold the same shard, with the
// ranks: of the groups that this rank is in. Collective over the axes that the plan uses: one all-gather of a number a
// tensor each. Key/value heads that only some ranks of an axis share are not compared.
Diagnostics FindDrift(const AppliedPlan& model);

}  // namespace moonshard
