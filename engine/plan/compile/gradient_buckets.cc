#include "engine/plan/compile/gradient_buckets.h"

#include <algorithm>
#include <map>
#include <ranges>
#include <utility>

#include "engine/plan/compile/gradient_terms.h"
#include "engine/plan/compile/local_shape.h"
#include "engine/plan/compile/sharded.h"

namespace moonshard {
namespace {

bool SumsOverData(const CompiledPlan& plan) {
  if (!plan.plan->data_parallel || plan.plan->data_parallel->shards) return false;
  return plan.mesh.size(MeshAxis::kDpReplicate) * plan.mesh.size(MeshAxis::kDpShard) > 1;
}

struct Open {
  GradientBucket bucket;
  int64_t bytes = 0;
};

}  // namespace

std::vector<GradientBucket> GradientBucketsOf(const CompiledPlan& plan) {
  std::vector<GradientBucket> out;
  if (!SumsOverData(plan)) return out;
  const int64_t most = plan.plan->data_parallel->bucket_bytes;
  std::map<std::pair<bool, DType>, Open> open;
  const std::set<ParamRef> repeats = Repeats(*plan.tree);
  const auto modules = static_cast<uint32_t>(plan.tree->modules().size());
  for (uint32_t m = modules; m-- > 0;) {
    const ModuleTree::Signature& signature = plan.tree->parameters(plan.tree->modules()[m]);
    for (auto p = static_cast<uint32_t>(signature.size()); p-- > 0;) {
      if (signature[p].is_buffer || repeats.contains({m, p})) continue;
      const Placement& placement = plan.StepsOf(m).params[p];
      const std::vector<GradientTerm> terms = GradientTermsOf(signature[p].shape, placement, plan.mesh, 0);
      const bool after_tp =
          std::ranges::any_of(terms, [](const GradientTerm& term) { return term.group.axis == MeshAxis::kTp; });
      int64_t elements = 1;
      for (int64_t size : LocalShape(signature[p].shape, placement, plan.mesh, 0)) elements *= size;
      const int64_t bytes = BytesOf(signature[p].dtype, elements);
      Open& of_kind = open[{after_tp, signature[p].dtype}];
      if (most > 0 && !of_kind.bucket.params.empty() && of_kind.bytes + bytes > most) {
        out.push_back(std::exchange(of_kind, {}).bucket);
      }
      of_kind.bucket.after_tp = after_tp;
      of_kind.bucket.dtype = signature[p].dtype;
      of_kind.bucket.params.push_back({m, p});
      of_kind.bytes += bytes;
    }
  }
  for (auto& [kind, last] : open) out.push_back(std::move(last.bucket));
  // What waits for tp is begun when the backward has ended: after all others.
  std::ranges::stable_partition(out, [](const GradientBucket& bucket) { return !bucket.after_tp; });
  return out;
}

}  // namespace moonshard
