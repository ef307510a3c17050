#include "engine/suspect/suspect.h"

#include "engine/suspect/flow.h"

namespace moonshard {

Diagnostics FindSuspicious(const CompiledPlan& plan) {
  Diagnostics out;
  if (plan.mesh.world_size() == 1) return out;
  const Flow flow(plan);
  SuspectLargeWhole(flow, out);
  if (plan.mesh.size(MeshAxis::kTp) == 1) return out;
  SuspectPieces(flow, out);
  SuspectHeads(flow, out);
  SuspectStream(flow, out);
  SuspectTerms(flow, out);
  SuspectNorms(flow, out);
  SuspectThrift(flow, out);
  return out;
}

}  // namespace moonshard
