#include "engine/apply/parallelize.h"

#include "engine/apply/live_tree.h"
#include "engine/compile/compile.h"
#include "engine/match/match.h"

namespace moonshard {

std::shared_ptr<AppliedPlan> ParallelizeModule(torch::nn::Module& root, const Plan& plan, const DeviceMesh& mesh,
                                               const ApplyOptions& options) {
  const LiveTree live = ReadLiveTree(root).ValueOrThrow();
  const MatchedPlan matched = MatchRules(std::make_shared<const Plan>(plan), live.tree).ValueOrThrow();
  return AppliedPlan::Apply(live, CompilePlan(matched, mesh.shape()).ValueOrThrow(), mesh, options);
}

}  // namespace moonshard
