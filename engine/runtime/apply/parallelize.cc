#include "engine/runtime/apply/parallelize.h"

#include "engine/plan/resolve/resolve_plan.h"
#include "engine/runtime/apply/live_tree.h"

namespace moonshard {

std::shared_ptr<AppliedPlan> ParallelizeModule(torch::nn::Module& root, const Plan& plan, const DeviceMesh& mesh,
                                               const ApplyOptions& options) {
  const LiveTree live = ReadLiveTree(root).ValueOrThrow();
  CompiledPlan compiled = ResolvePlan(std::make_shared<const Plan>(plan), live.tree, mesh.shape()).ValueOrThrow();
  return AppliedPlan::Apply(live, std::move(compiled), mesh, options);
}

}  // namespace moonshard
