#include "engine/runtime/apply/parallelize.h"

#include "engine/plan/compile/compile.h"
#include "engine/plan/match/match.h"
#include "engine/runtime/apply/live_tree.h"

namespace moonshard {

std::shared_ptr<AppliedPlan> ParallelizeModule(torch::nn::Module& root, const Plan& plan, const DeviceMesh& mesh,
                                               const ApplyOptions& options) {
  const LiveTree live = ReadLiveTree(root).ValueOrThrow();
  const MatchedPlan matched = MatchRules(std::make_shared<const Plan>(plan), live.tree).ValueOrThrow();
  return AppliedPlan::Apply(live, CompilePlan(matched, mesh.shape()).ValueOrThrow(), mesh, options);
}

}  // namespace moonshard
