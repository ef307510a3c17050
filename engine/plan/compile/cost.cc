#include "engine/plan/compile/cost.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <string_view>
#include <tuple>

#include "engine/layout/redistributions.h"
#include "engine/plan/compile/data_parallel.h"
#include "engine/plan/compile/gradient_buckets.h"
#include "engine/plan/compile/gradient_terms.h"
#include "engine/plan/compile/local_shape.h"
#include "engine/plan/compile/precision.h"
#include "engine/plan/compile/sharded.h"
#include "engine/plan/compile/unit_memory.h"

namespace moonshard {
namespace {

int64_t Product(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

bool CutsSequence(const std::optional<Redistribution>& move) {
  if (!move) return false;
  return move->from[MeshAxis::kTp] == Layout::Shard(1) || move->to[MeshAxis::kTp] == Layout::Shard(1);
}

std::vector<int64_t> BytesOnRank(const CompiledPlan& plan, const ModuleSteps& steps, int64_t rank) {
  std::vector<int64_t> out;
  const ModuleTree::Signature& signature = plan.tree->signatures()[steps.signature];
  for (size_t p = 0; p < signature.size(); ++p) {
    const std::vector<int64_t> local = LocalShape(signature[p].shape, steps.params[p], plan.mesh, rank);
    out.push_back(BytesOf(signature[p].dtype, Product(local)));
  }
  return out;
}

class Counter {
 public:
  Counter(const CompiledPlan& plan, int64_t rank, Tokens tokens)
      : plan_(plan), rank_(rank), tokens_(tokens.batch * tokens.sequence) {}

  std::vector<PlannedCollective> Count() {
    const std::vector<std::vector<SharedRedistribution>> shared = SharedRedistributionsOf(plan_);
    for (size_t m = 0; m < plan_.tree->modules().size(); ++m) {
      const ModuleSteps& steps = plan_.StepsOf(m);
      const int64_t runs = RunsOf(plan_.tree->modules()[m].path);
      for (size_t i = 0; i < steps.inputs.size(); ++i) {
        if (shared[i][m].first) Add(PlannedCollective::Of::kInput, m, steps.inputs[i], steps.in_features, runs);
      }
      for (const std::optional<Redistribution>& move : steps.outputs) {
        Add(PlannedCollective::Of::kOutput, m, move, steps.out_features, runs);
      }
    }
    CountGradientSums();
    CountUnits();
    return std::move(out_);
  }

 private:
  DType DTypeOf(size_t module) const {
    const ModuleTree::Signature& signature = plan_.tree->parameters(plan_.tree->modules()[module]);
    return signature.empty() ? DType::kF32 : UsedDType(plan_, {static_cast<uint32_t>(module), 0});
  }

  // How often the forward of a module runs in a step: once more for each recomputed one that it is in.
  int64_t RunsOf(std::string_view path) const {
    int64_t runs = 1;
    while (!plan_.recomputed.empty()) {
      runs += std::ranges::binary_search(plan_.recomputed, path) ? 1 : 0;
      if (path.empty()) break;
      path = ParentOf(path);
    }
    return runs;
  }

  void Add(PlannedCollective::Of of, size_t module, const std::optional<Redistribution>& move, int64_t features,
           int64_t runs) {
    const std::optional<MeshAxis> axis = MovingAxis(move, plan_.mesh);
    if (!axis) return;
    const std::optional<RedistributionRow> row = RowOf(move->from[*axis], move->to[*axis]);
    Check(row.has_value(), "a compiled move without a row");
    if (move->to[*axis].is_shared_last()) features = move->to[*axis].last;
    const int64_t bytes = features < 0 ? 0 : BytesOf(DTypeOf(module), tokens_ * features);
    for (Direction direction : {Direction::kForward, Direction::kBackward}) {
      const std::optional<CollectiveKind> kind = CollectiveOf(*row, direction);
      if (!kind) continue;
      for (int64_t run = 0; run < (direction == Direction::kForward ? runs : 1); ++run) {
        const int64_t sent = *kind == CollectiveKind::kAllToAll ? bytes / plan_.mesh.size(*axis) : bytes;
        out_.push_back({of, direction, *kind, sent, static_cast<int64_t>(module), -1});
      }
    }
  }

  // What one parameter adds to a flat sum of gradients.
  struct Sum {
    uint32_t param = 0;
    GradientGroup group;
    DType dtype = DType::kF32;
    int64_t bytes = 0;
  };

  // Of the modules that share these steps.
  std::vector<Sum> SumsOf(const ModuleSteps& steps) const {
    std::vector<Sum> out;
    const ModuleTree::Signature& signature = plan_.tree->signatures()[steps.signature];
    for (uint32_t p = 0; p < steps.params.size(); ++p) {
      const Parameter& parameter = signature[p];
      if (parameter.is_buffer) continue;
      for (const GradientTerm& term : GradientTermsOf(parameter.shape, steps.params[p], plan_.mesh, rank_)) {
        std::vector<int64_t> local = LocalShape(parameter.shape, steps.params[p], plan_.mesh, rank_);
        if (term.dim >= 0) local[static_cast<size_t>(term.dim)] = term.length;
        // Each brings one element more, which says whether this rank used it (layout/gradient_sum.h).
        out.push_back({p, term.group, parameter.dtype, BytesOf(parameter.dtype, Product(local) + 1)});
      }
    }
    return out;
  }

  // Each member brings one element more, and the last bucket one more for each bucket (layout/bucket_sum.h).
  void CountBuckets() {
    const std::vector<GradientBucket> buckets = GradientBucketsOf(plan_);
    in_buckets_ = !buckets.empty();
    const auto count = static_cast<int64_t>(buckets.size());
    for (const GradientBucket& bucket : buckets) {
      int64_t elements = &bucket == &buckets.back() && count > 1 ? count : 0;
      for (ParamRef ref : bucket.params) {
        const Placement& placement = plan_.StepsOf(ref.module).params[ref.param];
        elements += Product(LocalShape(plan_.tree->At(ref).shape, placement, plan_.mesh, rank_)) + 1;
      }
      for (MeshAxis axis : {MeshAxis::kDpShard, MeshAxis::kDpReplicate}) {
        if (plan_.mesh.size(axis) == 1) continue;
        out_.push_back({PlannedCollective::Of::kGradientSum, Direction::kBackward, CollectiveKind::kAllReduce,
                        BytesOf(bucket.dtype, elements), -1, -1});
      }
    }
  }

  void CountGradientSums() {
    CountBuckets();
    std::map<std::pair<GradientGroup, DType>, int64_t> bytes;
    const std::set<ParamRef> repeats = Repeats(*plan_.tree);
    std::vector<std::optional<std::vector<Sum>>> known(plan_.steps.size());
    for (uint32_t m = 0; m < plan_.tree->modules().size(); ++m) {
      std::optional<std::vector<Sum>>& sums = known[plan_.steps_of[m]];
      if (!sums) sums = SumsOf(plan_.StepsOf(m));
      for (const Sum& sum : *sums) {
        if (in_buckets_ && sum.group.axis != MeshAxis::kTp) continue;
        if (!repeats.contains({m, sum.param})) bytes[{sum.group, sum.dtype}] += sum.bytes;
      }
    }
    for (const auto& [key, sum] : bytes) {
      out_.push_back(
          {PlannedCollective::Of::kGradientSum, Direction::kBackward, CollectiveKind::kAllReduce, sum, -1, -1});
    }
  }

  // A unit is gathered once a dtype in forward, again in backward where it went back to shards, and its gradients are cut.
  void CountUnits() {
    if (UnitRanks(plan_) == 1) return;
    for (const ShardedUnit& unit : plan_.units) {
      std::map<std::pair<DType, DType>, UnitParamBytes> bytes;  // by stored and used dtype
      for (ParamRef ref : unit.params) {
        const UnitParamBytes of_param = BytesInUnit(plan_, ref, rank_);
        UnitParamBytes& of_dtypes = bytes[{plan_.tree->At(ref).dtype, UsedDType(plan_, ref)}];
        of_dtypes.full += of_param.full;
        of_dtypes.reduced += of_param.reduced;
      }
      const int64_t index = &unit - plan_.units.data();
      const auto add = [&](Direction direction, CollectiveKind kind, int64_t of_unit) {
        out_.push_back({PlannedCollective::Of::kUnit, direction, kind, of_unit, -1, index});
      };
      for (const auto& [dtypes, of_unit] : bytes) {
        add(Direction::kForward, CollectiveKind::kAllGather, of_unit.full);
        if (unit.reshard) add(Direction::kBackward, CollectiveKind::kAllGather, of_unit.full);
        add(Direction::kBackward, CollectiveKind::kReduceScatter, of_unit.reduced);
      }
    }
  }

  const CompiledPlan& plan_;
  int64_t rank_;
  int64_t tokens_;
  bool in_buckets_ = false;  // gradients are summed over the data-parallel ranks in buckets
  std::vector<PlannedCollective> out_;
};

}  // namespace

std::optional<MeshAxis> MovingAxis(const std::optional<Redistribution>& move, const MeshShape& mesh) {
  if (!move) return std::nullopt;
  for (MeshAxis axis : kMeshAxes) {
    if (mesh.size(axis) > 1 && move->from[axis] != move->to[axis]) return axis;
  }
  return std::nullopt;
}

std::vector<std::vector<SharedRedistribution>> SharedRedistributionsOf(const CompiledPlan& plan) {
  const std::vector<Module>& modules = plan.tree->modules();
  // By position, parent and move: the modules that ask, the first one in front.
  std::map<std::tuple<size_t, std::string_view, std::string>, std::vector<size_t>> askers;
  size_t most_inputs = 0;
  for (size_t m = 0; m < modules.size(); ++m) {
    const ModuleSteps& steps = plan.StepsOf(m);
    most_inputs = std::max(most_inputs, steps.inputs.size());
    for (size_t i = 0; i < steps.inputs.size(); ++i) {
      if (!MovingAxis(steps.inputs[i], plan.mesh)) continue;
      const std::string move = steps.inputs[i]->from.ToText() + " -> " + steps.inputs[i]->to.ToText();
      askers[{i, ParentOf(modules[m].path), move}].push_back(m);
    }
  }
  std::vector<std::vector<SharedRedistribution>> out(most_inputs, std::vector<SharedRedistribution>(modules.size()));
  for (const auto& [key, asking] : askers) {
    for (size_t m : asking) out[std::get<0>(key)][m] = {static_cast<int>(asking.size()), m == asking.front()};
  }
  return out;
}

std::vector<PlannedCollective> CollectivesOf(const CompiledPlan& plan, int64_t rank, Tokens tokens) {
  return Counter(plan, rank, tokens).Count();
}

Tokens FewestTokens(const CompiledPlan& plan) {
  const auto cuts = [](const ModuleSteps& steps) {
    return std::ranges::any_of(steps.inputs, CutsSequence) || std::ranges::any_of(steps.outputs, CutsSequence);
  };
  // Steps that no module has do not count.
  const bool cuts_sequence = std::ranges::any_of(plan.steps_of, [&](uint32_t s) { return cuts(plan.steps[s]); });
  return {1, cuts_sequence ? plan.mesh.size(MeshAxis::kTp) : 1};
}

PlanTotals TotalsOf(const CompiledPlan& plan, int64_t rank, std::optional<Tokens> tokens) {
  PlanTotals totals;
  const std::set<ParamRef> repeats = Repeats(*plan.tree);
  std::vector<std::vector<int64_t>> known(plan.steps.size());  // bytes of each parameter on this rank, by steps
  for (uint32_t m = 0; m < plan.tree->modules().size(); ++m) {
    const ModuleSteps& steps = plan.StepsOf(m);
    std::vector<int64_t>& bytes = known[plan.steps_of[m]];
    if (bytes.empty()) bytes = BytesOnRank(plan, steps, rank);
    for (uint32_t p = 0; p < steps.params.size(); ++p) {
      if (repeats.contains({m, p})) continue;
      const Parameter& parameter = plan.tree->At({m, p});
      totals.bytes_per_rank += bytes[p];
      if (parameter.is_buffer) continue;
      totals.gradient_bytes += bytes[p];
      totals.optimizer_bytes += 2 * bytes[p];
      const int64_t elements = parameter.elements();
      totals.params += elements;
      (IsSharded(steps.params[p], plan.mesh) ? totals.sharded_params : totals.replicated_params) += elements;
    }
  }
  for (const PlannedCollective& c : CollectivesOf(plan, rank, tokens ? *tokens : FewestTokens(plan))) {
    totals.collectives.Add(c.direction, c.kind, c.bytes);
  }
  return totals;
}

}  // namespace moonshard
