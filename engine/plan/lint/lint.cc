#include "engine/plan/lint/lint.h"

#include "engine/plan/lint/flow.h"

namespace moonshard {

Diagnostics FindSuspicious(const CompiledPlan& plan) {
  Diagnostics out;
  if (plan.mesh.world_size() == 1) return out;
  const Flow flow(plan);
  LintLargeReplicated(flow, out);
  if (plan.mesh.size(MeshAxis::kTp) == 1) return out;
  LintShards(flow, out);
  LintHeads(flow, out);
  LintStream(flow, out);
  LintTerms(flow, out);
  LintNorms(flow, out);
  LintThrift(flow, out);
  return out;
}

}  // namespace moonshard
