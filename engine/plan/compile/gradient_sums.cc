#include "engine/plan/compile/gradient_sums.h"

#include <algorithm>
#include <map>
#include <optional>
#include <ranges>
#include <set>
#include <utility>

#include "engine/core/base/check.h"
#include "engine/plan/compile/local_shape.h"

namespace moonshard {
namespace {

// Two reasons make a gradient a term of a sum. A `shared` parameter is used on shards of activations, so each rank of
// the axis has the part of its gradient that these shards bring. And where there are fewer heads than ranks,
// ranks/heads neighbours hold the same head and each sees some of its uses (key and value heads of grouped attention):
// they form a sub-group of the axis. In a fused weight (queries, keys and values in one) only the key and value rows
// are such, so the term is a range of rows; neighbouring ranges of one group are summed as one.
std::vector<GradientTerm> TermsOfShard(const Layout& layout, int64_t size, MeshAxis axis, int64_t ranks,
                                       int64_t coordinate) {
  const std::vector<DimShards::LocalPart> parts =
      DimShards::Make(layout, size, ranks).ValueOrThrow().PartsOf(coordinate);
  std::vector<GradientTerm> terms;
  for (const DimShards::LocalPart& part : parts) {
    if (part.replicas == 1) continue;
    const PlannedGroup group = {axis, part.replicas};
    if (parts.size() == 1) return {{group}};
    if (!terms.empty() && terms.back().group == group && terms.back().begin + terms.back().length == part.local_begin) {
      terms.back().length += part.global.length;
    } else {
      terms.push_back({group, layout.dim, part.local_begin, part.global.length});
    }
  }
  return terms;
}

struct Open {
  GradientBucket bucket;
  int64_t bytes = 0;
};

}  // namespace

// The sums over tp come first, and those over all other axes are one sum: a gradient that is a term on every rank of
// dp_shard and cp needs one all-reduce over the ranks of both. tp stays apart: what is shared on tp is a small part of
// the parameters, and its sum has to be there before the buckets of ddp are filled. A plain shard on another axis adds
// no term, since fsdp's reduce-scatter has summed it. On tp=4:
//
//   norm.weight       shared                                   one term: all of it, over 4 ranks
//   k_proj.weight     shard(0,heads=2)                         one term: all of the shard, over 2 neighbours
//   qkv_proj.weight   packed(0,[512:heads=8,128:heads=2,..])   one term: the rows of k and v, over 2 neighbours
//   q_proj.weight     shard(0,heads=8)                         none
std::vector<GradientTerm> GradientTermsOf(const std::vector<int64_t>& shape, const Placement& placement,
                                          const MeshShape& mesh, int64_t rank) {
  std::vector<GradientTerm> out;
  AxisSet shared;
  for (MeshAxis axis : std::views::reverse(kMeshAxes)) {
    const Layout& layout = placement[axis];
    const int64_t ranks = mesh.size(axis);
    if (ranks == 1) continue;
    if (layout.kind == LayoutKind::kShared && axis == MeshAxis::kTp) {
      out.push_back({PlannedGroup{axis, ranks}});
    } else if (layout.kind == LayoutKind::kShared) {
      shared.insert(axis);
    } else if (layout.is_shard() && (axis == MeshAxis::kTp || !layout.is_plain_shard())) {
      const std::vector<GradientTerm> terms =
          TermsOfShard(layout, shape[static_cast<size_t>(layout.dim)], axis, ranks, mesh.Coordinate(rank, axis));
      out.insert(out.end(), terms.begin(), terms.end());
    }
  }
  if (!shared.empty()) out.push_back({PlannedGroup{shared, mesh.size(shared)}});
  return out;
}

Interval ElementsOf(const PlannedSum& sum, const std::vector<int64_t>& shape, const Placement& placement,
                    const MeshShape& mesh, int64_t rank) {
  const std::vector<GradientTerm> terms = GradientTermsOf(shape, placement, mesh, rank);
  const auto index = static_cast<size_t>(sum.term);
  Check(index < terms.size() && terms[index].group == sum.group && terms[index].dim == sum.dim,
        "a planned sum that the parameter's placement does not have");
  return {terms[index].begin, terms[index].length};
}

bool SumsOverData(const CompiledPlan& plan) { return plan.plan->data_parallel && plan.mesh.data_ranks() > 1; }

bool SpansData(const PlannedGroup& group) {
  return std::ranges::any_of(group.axes.axes(), [](MeshAxis axis) { return IsDataAxis(axis); });
}

bool IsInBucket(const CompiledPlan& plan, const Placement& placement) {
  if (!SumsOverData(plan) || plan.plan->data_parallel->shards) return false;
  return std::ranges::all_of(kDataAxes, [&](MeshAxis axis) {
    return plan.mesh.size(axis) == 1 || placement[axis].kind == LayoutKind::kShared;
  });
}

bool SumsOverRanks(const CompiledPlan& plan) {
  return plan.mesh.size(MeshAxis::kTp) > 1 || plan.context_parallel || SumsOverData(plan);
}

// Buckets are filled in the reverse order of the tree: a backward makes the gradients of the last layers first, so a
// bucket of neighbours is ready early and its all-reduce runs beside the rest of the backward. One bucket is open for
// each kind of parameter at a time: of one dtype, since an all-reduce has one; and apart where gradients are summed
// over tp first, since that happens when the backward ends, and a bucket that waited for one such parameter would
// hold up all others. Buckets of a plan that exchanges tokens wait for the end too: a bucket starts when its gradients
// have arrived, which may be elsewhere in the backward on each rank, and the exchanges run on the same group. What a
// bucket holds must not depend on the rank: bytes are those of rank 0's shards.
std::vector<GradientBucket> GradientBucketsOf(const CompiledPlan& plan) {
  std::vector<GradientBucket> out;
  if (!SumsOverData(plan) || plan.plan->data_parallel->shards) return out;
  const int64_t most = plan.plan->data_parallel->bucket_bytes;
  const bool exchanges = plan.exchanges_tokens();
  std::map<std::pair<bool, DType>, Open> open;
  const std::set<ParamRef> repeats = TiedCopies(*plan.tree);
  const auto modules = static_cast<uint32_t>(plan.tree->modules().size());
  for (uint32_t m = modules; m-- > 0;) {
    const ModuleTree::Signature& signature = plan.tree->parameters(plan.tree->modules()[m]);
    for (auto p = static_cast<uint32_t>(signature.size()); p-- > 0;) {
      if (!plan.Trains({m, p}) || repeats.contains({m, p})) continue;
      const Placement& placement = plan.LayoutsOf(m).params[p];
      if (!IsInBucket(plan, placement)) continue;
      const std::vector<GradientTerm> terms = GradientTermsOf(signature[p].shape, placement, plan.mesh, 0);
      const auto over_data = std::ranges::find_if(terms, SpansData, &GradientTerm::group);
      Check(over_data != terms.end() && over_data->dim < 0 && (out.empty() || out.front().group == over_data->group),
            "a gradient that is not summed over the ranks of a bucket");
      const bool at_end =
          exchanges || std::ranges::any_of(terms, [](const GradientTerm& term) { return !SpansData(term.group); });
      int64_t elements = 1;
      for (int64_t size : LocalShape(signature[p].shape, placement, plan.mesh, 0)) elements *= size;
      const int64_t bytes = BytesOf(signature[p].dtype, elements);
      Open& of_kind = open[{at_end, signature[p].dtype}];
      if (most > 0 && !of_kind.bucket.params.empty() && of_kind.bytes + bytes > most) {
        out.push_back(std::exchange(of_kind, {}).bucket);
      }
      of_kind.bucket.at_end = at_end;
      of_kind.bucket.dtype = signature[p].dtype;
      of_kind.bucket.group = over_data->group;
      of_kind.bucket.params.push_back({m, p});
      of_kind.bytes += bytes;
    }
  }
  for (auto& [kind, last] : open) out.push_back(std::move(last.bucket));
  // What waits for tp is begun when the backward has ended: after all others.
  std::ranges::stable_partition(out, [](const GradientBucket& bucket) { return !bucket.at_end; });
  return out;
}

}  // namespace moonshard
