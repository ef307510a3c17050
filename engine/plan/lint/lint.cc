#include "engine/plan/lint/lint.h"

#include "engine/plan/lint/flow.h"

namespace moonshard {

Diagnostics LintPlan(const CompiledPlan& plan) {
  Diagnostics out;
  if (plan.mesh.world_size() == 1) return out;
  const Flow flow(plan);
  // In the order of the findings' subjects: parameters, then activations from features to cost.
  LintLargeReplicated(flow, out);
  if (plan.mesh.size(MeshAxis::kTp) == 1) return out;
  LintShards(flow, out);
  LintHeads(flow, out);
  LintStream(flow, out);
  LintPartialSums(flow, out);
  LintNorms(flow, out);
  LintCost(flow, out);
  return out;
}

}  // namespace moonshard
