// Activation dims: what a layout shards of an activation [batch, sequence, features].
// Part of compiled_plan.h; used by unclaimed.h and by suspect.
#pragma once

#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {

bool CutsFeatures(const Layout& layout);
// Of the sequence.
bool CutsTokens(const Layout& layout);
// Whether any of the module's redistributions, on tp, is from or to shards of the sequence.
bool SaysTokens(const ModuleSteps& steps);

}  // namespace moonshard
