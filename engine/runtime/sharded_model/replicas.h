// Replicas: compares or broadcasts, between steps, the values that several ranks hold. A step keeps these values equal
// only while every rank writes the same values. Before a plan is applied, use apply/initial_values.h.
#pragma once

#include "engine/core/base/diagnostic.h"

namespace moonshard {

class AppliedPlan;

// Along every axis that does not shard a parameter or buffer, copies the bytes of the rank with coordinate 0 to the
// other ranks. Use it for a model that each rank initialised by itself. Key/value heads that only some ranks of an axis
// share are not changed. Collective over the axes that the plan uses: one flat all-reduce of bytes per axis.
void BroadcastReplicas(const AppliedPlan& model);

// Returns one kRanksDisagree for each parameter or buffer whose bytes differ between ranks along an axis that does not
// shard it. Each diagnostic lists the ranks of this rank's groups whose values differ from the values of the first rank
// of the group. Key/value heads that only some ranks of an axis share are not compared. Collective over the axes that
// the plan uses: one all-gather of one hash per tensor for each axis.
Diagnostics FindDrift(const AppliedPlan& model);

}  // namespace moonshard
