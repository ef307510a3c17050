// Costs are counted by walking the compiled steps, with the same table of collectives that the run time executes
// (redistributions.h) and the same shared redistributions, buckets and units. A test compares the count with the
// collectives of a real step, so a change of one without the other is found. Bytes are of the full tensor in the dtype
// that is sent; what a link carries depends on the algorithm of the backend. An MLP on tp=2, hidden h, t tokens of
// float32 (4 t h bytes):
//
//   gate, up   replicate -> shared    forward none              backward all-reduce, 4 t h, once for both
//   down       partial -> replicate   forward all-reduce, 4 t h backward none
//
// and with the sequence in shards, each 4 t h:
//
//   gate, up   shard(1) -> shared     forward all-gather        backward reduce-scatter
//   down       partial -> shard(1)    forward reduce-scatter    backward all-gather
#include "engine/plan/compile/cost.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <ranges>
#include <set>
#include <string_view>
#include <tuple>

#include "engine/core/base/text.h"
#include "engine/layout/redistributions.h"
#include "engine/layout/ring_steps.h"
#include "engine/layout/shards.h"
#include "engine/plan/compile/data_parallel.h"
#include "engine/plan/compile/gradient_sums.h"
#include "engine/plan/compile/local_shape.h"
#include "engine/plan/compile/precision.h"
#include "engine/plan/compile/unit_memory.h"

namespace moonshard {
namespace {

int64_t Product(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

bool CutsSequence(const std::optional<Redistribution>& move, MeshAxis axis) {
  const auto is_cut = [&](const Placement& placement) {
    return placement[axis] == Layout::Shard(1) ||
           (placement[axis].zigzag && placement[axis] == Layout::Zigzag(1, placement[axis].inner));
  };
  return move && (is_cut(move->from) || is_cut(move->to));
}

// The size that `layout` leaves of a dim of `size` elements on the rank with this coordinate.
int64_t LocalSize(const Layout& layout, int64_t size, int64_t ranks, int64_t coordinate) {
  const Result<DimShards> shards = DimShards::Make(layout, size, ranks);
  return shards.ok() ? shards.value().length(coordinate) : size / ranks;
}

std::vector<int64_t> BytesOnRank(const CompiledPlan& plan, const ModuleLayouts& layouts, int64_t rank) {
  std::vector<int64_t> out;
  const ModuleTree::Signature& signature = plan.tree->signatures()[layouts.signature];
  for (size_t p = 0; p < signature.size(); ++p) {
    const std::vector<int64_t> local = LocalShape(signature[p].shape, layouts.params[p], plan.mesh, rank);
    out.push_back(BytesOf(signature[p].dtype, Product(local)));
  }
  return out;
}

// Counts what one step executes on one rank. A redistributed input that several siblings share is counted with the
// first of them, whose step has no `shared_with`. A recomputed module runs its forward once more, so its forward
// collectives count again, and its backward ones do not.
class Counter {
 public:
  Counter(const CompiledPlan& plan, int64_t rank, Tokens tokens) : plan_(plan), rank_(rank), tokens_(tokens) {}

  std::vector<PlannedCollective> Count() {
    for (size_t m = 0; m < plan_.tree->modules().size(); ++m) {
      const ModuleSteps& steps = plan_.StepsOf(m);
      if (steps.empty()) continue;
      const ModuleLayouts& layouts = plan_.LayoutsOf(m);
      const int64_t runs = RunsOf(plan_.tree->modules()[m].path);
      for (const ModuleStep& step : steps.enter) {
        if (step.kind == StepKind::kSendTokens) AddExchange(m, layouts, runs);
        if (step.kind == StepKind::kRingAttention) AddRing(m, layouts);
        if (step.kind != StepKind::kRedistributeInput || !step.shared_with.empty()) continue;
        Add(PlannedCollective::Of::kInput, m, layouts.inputs, step, layouts.in_features, runs);
      }
      for (const ModuleStep& step : steps.leave) {
        if (step.kind != StepKind::kRedistributeOutput) continue;
        Add(PlannedCollective::Of::kOutput, m, layouts.outputs, step, layouts.out_features, runs);
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

  // How often the forward of a module runs in a step: once more for each recomputed one that it is in, since each of
  // them runs everything within it again (a recomputed MLP in a recomputed layer runs three times). `recomputed` is
  // sorted by path, so each ancestor is one binary search.
  int64_t RunsOf(std::string_view path) const {
    int64_t runs = 1;
    while (!plan_.recomputed.empty()) {
      runs += std::ranges::binary_search(plan_.recomputed, path) ? 1 : 0;
      if (path.empty()) break;
      path = ParentOf(path);
    }
    return runs;
  }

  // Elements of an activation [batch, sequence, features] on this rank. The layout on `full` does not count: the
  // collectives of that axis have the full tensor on one side. Of axes that shard one dim the outermost shards the
  // sequence first, and the innermost the features first: tp shards the features of a weight before any other axis
  // does.
  int64_t ElementsOf(const Placement& placement, int64_t features, std::optional<MeshAxis> full) const {
    int64_t batch = tokens_.batch;
    int64_t sequence = tokens_.sequence;
    const auto shrink = [&](MeshAxis axis, int64_t& size) {
      size = LocalSize(placement[axis], size, plan_.mesh.size(axis), plan_.mesh.Coordinate(rank_, axis));
    };
    for (MeshAxis axis : kMeshAxes) {
      if (axis == full || !placement[axis].is_shard()) continue;
      if (ShardsSequence(placement[axis])) shrink(axis, sequence);
      if (placement[axis].inner > 1 && !ShardsSequence(placement[axis])) sequence = TokensOfGroup(axis, sequence);
      if (placement[axis].dim == 0) shrink(axis, batch);
    }
    for (MeshAxis axis : std::views::reverse(kMeshAxes)) {
      if (axis != full && ShardsFeatures(placement[axis])) shrink(axis, features);
    }
    return batch * sequence * features;
  }

  // The tokens of the rank's group, all of which a rank has of its heads.
  int64_t TokensOfGroup(MeshAxis axis, int64_t sequence) const {
    const int64_t inner = plan_.mesh.cp_heads();
    return LocalSize(Layout::Zigzag(1), sequence, plan_.mesh.size(axis) / inner,
                     plan_.mesh.Coordinate(rank_, axis) / inner);
  }

  void Add(PlannedCollective::Of of, size_t module, const std::vector<std::optional<Redistribution>>& redistributions,
           const ModuleStep& step, int64_t features, int64_t runs) {
    const Redistribution& move = *redistributions[static_cast<size_t>(step.position)];
    const Layout& to = move.to[step.axis];
    const std::optional<RedistributionRow> row = RowOf(move.from[step.axis], to);
    Check(row.has_value(), "a compiled redistribution without a row");
    if (to.is_shared_last()) features = to.last;
    const bool gradient = of == PlannedCollective::Of::kOutput || plan_.LayoutsOf(module).HasGradient(step.position);
    for (Direction direction : {Direction::kForward, Direction::kBackward}) {
      const std::optional<CollectiveKind> kind = CollectiveOf(*row, direction);
      if (!kind || (direction == Direction::kBackward && !gradient)) continue;
      // Of several axes the earlier ones have their new layouts, and the later ones their old layouts.
      Placement now = move.from;
      for (MeshAxis axis : MovingAxes(move, plan_.mesh)) {
        if (axis == step.axis) break;
        now[axis] = move.to[axis];
      }
      // An all-to-all sends a shard, exchanged for shards of the others: of the old layout forward, of the new one
      // backward. The other collectives are counted by the full tensor.
      const bool exchanges = *kind == CollectiveKind::kAllToAll;
      if (exchanges && direction == Direction::kBackward) now[step.axis] = to;
      const int64_t elements =
          features < 0 ? 0 : ElementsOf(now, features, exchanges ? std::nullopt : std::optional(step.axis));
      for (int64_t run = 0; run < (direction == Direction::kForward ? runs : 1); ++run) {
        out_.push_back({of, direction, *kind, BytesOf(DTypeOf(module), elements), static_cast<int64_t>(module), -1});
      }
    }
  }

  // Experts that are modules of their own have the dtype of the first of them.
  DType DTypeOfExperts(size_t module) const {
    const std::vector<Module>& modules = plan_.tree->modules();
    const std::string inside = modules[module].path + ".";
    for (size_t m = module; m < modules.size(); ++m) {
      if (m > module && !modules[m].path.starts_with(inside)) continue;
      if (!plan_.tree->parameters(modules[m]).empty()) return DTypeOf(m);
    }
    return DType::kF32;
  }

  // The numbers of tokens for each expert, the tokens, one row for each of their experts, and the results; in backward
  // the gradients of both. The rows that a rank sends and those that come back are its own, however they are routed.
  void AddExchange(size_t module, const ModuleLayouts& layouts, int64_t runs) {
    const Exchange& exchange = *layouts.exchange;
    const int64_t ranks = plan_.mesh.size(MeshAxis::kEp);
    int64_t sequence = tokens_.sequence;
    if (plan_.context_parallel) {
      sequence = LocalSize(plan_.own_tokens(), sequence, plan_.mesh.size(MeshAxis::kCp),
                           plan_.mesh.Coordinate(rank_, MeshAxis::kCp));
    }
    const int64_t rows =
        BytesOf(DTypeOfExperts(module), tokens_.batch * sequence * exchange.per_token * exchange.features);
    using Of = PlannedCollective::Of;
    const auto add = [&](Of of, Direction direction, int64_t bytes) {
      out_.push_back({of, direction, CollectiveKind::kAllToAll, bytes, static_cast<int64_t>(module), -1});
    };
    for (int64_t run = 0; run < runs; ++run) {
      add(Of::kExchangeCounts, Direction::kForward,
          BytesOf(DType::kI64, (layouts.experts + ranks - 1) / ranks * ranks));
      for (int i = 0; i < 2; ++i) add(Of::kExchange, Direction::kForward, rows);
    }
    for (int i = 0; i < 2; ++i) add(Of::kExchange, Direction::kBackward, rows);
  }

  // Keys and values of this rank's heads, in the dtype in which the enclosing module computes, which may differ from
  // that of the projection (keep_dtype). The attention runs in that module, and again where it is recomputed.
  void AddRing(size_t module, const ModuleLayouts& layouts) {
    const Ring& ring = *layouts.ring;
    const int64_t tp = layouts.inputs.front()->from[MeshAxis::kTp].is_shard() ? plan_.mesh.size(MeshAxis::kTp) : 1;
    const int64_t inner = plan_.mesh.cp_heads();
    const int64_t elements =
        tokens_.batch * std::max<int64_t>(ring.kv_heads / (tp * inner), 1) * 2 * (layouts.in_features / ring.heads);
    const std::string_view attention = ParentOf(plan_.tree->modules()[module].path);
    const ModuleTree::Signature& signature = plan_.tree->parameters(plan_.tree->modules()[module]);
    const DType stored = signature.empty() ? DType::kF32 : signature.front().dtype;
    const DType dtype = DTypeNamed(ComputeDTypeOf(plan_, attention)).value_or(stored);
    const int64_t token_bytes = BytesOf(dtype, elements);
    const int64_t gradient_bytes = BytesOf(dtype == DType::kF64 ? dtype : DType::kF32, elements);
    const std::optional<int64_t> window = ring.window > 0 ? std::optional(ring.window) : std::nullopt;
    const RingSteps steps(tokens_.sequence, window, plan_.mesh.size(MeshAxis::kCp),
                          layouts.inputs.front()->to[MeshAxis::kCp].zigzag, inner);
    const int64_t rank = plan_.mesh.Coordinate(rank_, MeshAxis::kCp);
    const auto add = [&](Direction direction, const CollectiveCount& count) {
      for (int64_t i = 0; i < count.count; ++i) {
        const int64_t bytes =
            i == 0 ? count.bytes - count.bytes / count.count * (count.count - 1) : count.bytes / count.count;
        out_.push_back({PlannedCollective::Of::kRing, direction, CollectiveKind::kAllToAll, bytes,
                        static_cast<int64_t>(module), -1});
      }
    };
    const int64_t runs = RunsOf(attention);
    for (int64_t run = 0; run < runs; ++run) add(Direction::kForward, RingForward(steps, rank, token_bytes));
    add(Direction::kBackward, RingBackward(steps, rank, token_bytes, gradient_bytes));
  }

  // What one parameter adds to a flat sum of gradients.
  struct Sum {
    uint32_t param = 0;
    PlannedGroup group;
    DType dtype = DType::kF32;
    int64_t bytes = 0;
    bool in_bucket = false;
  };

  // Of the modules that share these steps.
  std::vector<Sum> SumsOf(const ModuleSteps& steps) const {
    std::vector<Sum> out;
    const ModuleLayouts& layouts = plan_.layouts[steps.layouts];
    const ModuleTree::Signature& signature = plan_.tree->signatures()[layouts.signature];
    for (uint32_t p = 0; p < layouts.params.size() && !steps.sums.empty(); ++p) {
      const Parameter& parameter = signature[p];
      if (!plan_.Trains(layouts, parameter)) continue;
      for (const GradientTerm& term : GradientTermsOf(parameter.shape, layouts.params[p], plan_.mesh, rank_)) {
        std::vector<int64_t> local = LocalShape(parameter.shape, layouts.params[p], plan_.mesh, rank_);
        if (term.dim >= 0) local[static_cast<size_t>(term.dim)] = term.length;
        // Each brings one element more: whether this rank used it (redistribute/gradient_sum.h).
        const bool in_bucket = SpansData(term.group) && IsInBucket(plan_, layouts.params[p]);
        out.push_back({p, term.group, parameter.dtype, BytesOf(parameter.dtype, Product(local) + 1), in_bucket});
      }
    }
    return out;
  }

  // Each member brings one element more, and the last bucket one more for each bucket (redistribute/bucket_sum.h).
  void CountBuckets() {
    const std::vector<GradientBucket>& buckets = plan_.buckets;
    const auto count = static_cast<int64_t>(buckets.size());
    for (const GradientBucket& bucket : buckets) {
      int64_t elements = &bucket == &buckets.back() && count > 1 ? count : 0;
      for (ParamRef ref : bucket.params) {
        const Placement& placement = plan_.LayoutsOf(ref.module).params[ref.param];
        elements += Product(LocalShape(plan_.tree->At(ref).shape, placement, plan_.mesh, rank_)) + 1;
      }
      out_.push_back({PlannedCollective::Of::kGradientSum, Direction::kBackward, CollectiveKind::kAllReduce,
                      BytesOf(bucket.dtype, elements), -1, -1});
    }
  }

  void CountGradientSums() {
    CountBuckets();
    std::map<std::pair<PlannedGroup, DType>, int64_t> bytes;
    const std::set<ParamRef> repeats = TiedCopies(*plan_.tree);
    std::vector<std::optional<std::vector<Sum>>> known(plan_.steps.size());
    for (uint32_t m = 0; m < plan_.tree->modules().size(); ++m) {
      std::optional<std::vector<Sum>>& sums = known[plan_.steps_of[m]];
      if (!sums) sums = SumsOf(plan_.StepsOf(m));
      for (const Sum& sum : *sums) {
        if (!sum.in_bucket && !repeats.contains({m, sum.param})) bytes[{sum.group, sum.dtype}] += sum.bytes;
      }
    }
    for (const auto& [key, sum] : bytes) {
      out_.push_back(
          {PlannedCollective::Of::kGradientSum, Direction::kBackward, CollectiveKind::kAllReduce, sum, -1, -1});
    }
  }

  // A unit is gathered once per dtype in forward, again in backward where it went back to shards, and its gradients are
  // reduce-scattered, those of frozen parameters excepted.
  void CountUnits() {
    if (plan_.unit_settings.ranks == 1) return;
    for (const ShardedUnit& unit : plan_.units) {
      struct OfDTypes : UnitParamBytes {
        bool trains = false;  // a member of it
      };
      std::map<std::pair<DType, DType>, OfDTypes> bytes;  // by stored and used dtype
      for (ParamRef ref : unit.params) {
        const UnitParamBytes of_param = BytesInUnit(plan_, ref, rank_);
        OfDTypes& of_dtypes = bytes[{plan_.tree->At(ref).dtype, UsedDType(plan_, ref)}];
        of_dtypes.full += of_param.full;
        of_dtypes.reduced += of_param.reduced;
        of_dtypes.trains |= plan_.Trains(ref);
      }
      const int64_t index = &unit - plan_.units.data();
      const auto add = [&](Direction direction, CollectiveKind kind, int64_t of_unit) {
        out_.push_back({PlannedCollective::Of::kUnit, direction, kind, of_unit, -1, index});
      };
      for (const auto& [dtypes, of_unit] : bytes) {
        add(Direction::kForward, CollectiveKind::kAllGather, of_unit.full);
        if (unit.reshard) add(Direction::kBackward, CollectiveKind::kAllGather, of_unit.full);
        if (of_unit.trains) add(Direction::kBackward, CollectiveKind::kReduceScatter, of_unit.reduced);
      }
    }
  }

  const CompiledPlan& plan_;
  int64_t rank_;
  Tokens tokens_;
  std::vector<PlannedCollective> out_;
};

}  // namespace

std::vector<MeshAxis> MovingAxes(const std::optional<Redistribution>& move, const MeshShape& mesh) {
  std::vector<MeshAxis> out;
  if (!move) return out;
  for (MeshAxis axis : kMeshAxes) {
    if (mesh.size(axis) > 1 && move->from[axis] != move->to[axis]) out.push_back(axis);
  }
  if (out.size() < 2) return out;
  const auto shards = std::ranges::stable_partition(out, [&](MeshAxis axis) { return !move->from[axis].is_shard(); });
  std::ranges::reverse(shards);
  return out;
}

std::string CollectiveText(const Redistribution& redistribution, const MeshShape& mesh, Direction direction,
                           bool gradient) {
  std::vector<std::string> kinds;
  if (direction == Direction::kBackward && !gradient) return "";
  for (MeshAxis axis : MovingAxes(redistribution, mesh)) {
    const std::optional<RedistributionRow> row = RowOf(redistribution.from[axis], redistribution.to[axis]);
    Check(row.has_value(), "a compiled redistribution without a row");
    if (const std::optional<CollectiveKind> kind = CollectiveOf(*row, direction)) kinds.emplace_back(ToString(*kind));
  }
  return Join(kinds, " and ");
}

std::string RingCollectiveText(const MeshShape& mesh, Direction direction) {
  const int64_t steps = mesh.size(MeshAxis::kCp) / mesh.cp_heads() - 1;
  return std::to_string(direction == Direction::kForward ? steps : 2 * steps) + " all_to_all";
}

std::string RingCollectivesText(const MeshShape& mesh) {
  return RingCollectiveText(mesh, Direction::kForward) + " forward, " + RingCollectiveText(mesh, Direction::kBackward) +
         " backward";
}

std::string CollectivesText(const Redistribution& redistribution, const MeshShape& mesh, bool gradient) {
  std::vector<std::string> collectives;
  for (Direction direction : {Direction::kForward, Direction::kBackward}) {
    const std::string kind = CollectiveText(redistribution, mesh, direction, gradient);
    if (!kind.empty()) collectives.push_back(kind + " " + ToString(direction));
  }
  return Join(collectives, ", ");
}

std::vector<PlannedCollective> CollectivesOf(const CompiledPlan& plan, int64_t rank, Tokens tokens) {
  return Counter(plan, rank, tokens).Count();
}

// A sequence in shards needs a token for each rank of the axes that shard it, in zigzag one for each chunk: of fewer
// tokens the late chunks are empty, and the traffic of a ring is that of plain chunks or none.
// The count of collectives does not depend on the tokens, only their bytes do.
Tokens FewestTokens(const CompiledPlan& plan) {
  int64_t sequence = 1;
  for (MeshAxis axis : {MeshAxis::kCp, MeshAxis::kTp}) {
    const auto cuts = [&](const std::optional<Redistribution>& move) { return CutsSequence(move, axis); };
    // Steps that no module has do not count.
    const bool cuts_sequence = std::ranges::any_of(plan.layouts_of, [&](uint32_t s) {
      return std::ranges::any_of(plan.layouts[s].inputs, cuts) || std::ranges::any_of(plan.layouts[s].outputs, cuts);
    });
    if (cuts_sequence) sequence *= plan.mesh.size(axis);
    if (cuts_sequence && axis == MeshAxis::kCp && plan.own_tokens().zigzag) sequence *= 2;
  }
  return {1, sequence};
}

PlanTotals TotalsOf(const CompiledPlan& plan, int64_t rank, std::optional<Tokens> tokens) {
  PlanTotals totals;
  const std::set<ParamRef> repeats = TiedCopies(*plan.tree);
  std::vector<std::vector<int64_t>> known(plan.layouts.size());  // bytes of each parameter on this rank, by layouts
  for (uint32_t m = 0; m < plan.tree->modules().size(); ++m) {
    const ModuleLayouts& layouts = plan.LayoutsOf(m);
    std::vector<int64_t>& bytes = known[plan.layouts_of[m]];
    if (bytes.empty()) bytes = BytesOnRank(plan, layouts, rank);
    for (uint32_t p = 0; p < layouts.params.size(); ++p) {
      if (repeats.contains({m, p})) continue;
      const Parameter& parameter = plan.tree->At({m, p});
      totals.bytes_per_rank += bytes[p];
      if (parameter.is_buffer) continue;
      if (plan.Trains({m, p})) {
        totals.gradient_bytes += bytes[p];
        totals.optimizer_bytes += 2 * bytes[p];
      }
      const int64_t elements = parameter.elements();
      totals.params += elements;
      (IsSharded(layouts.params[p], plan.mesh) ? totals.sharded_params : totals.replicated_params) += elements;
    }
  }
  for (const PlannedCollective& c : CollectivesOf(plan, rank, tokens ? *tokens : FewestTokens(plan))) {
    totals.collectives.Add(c.direction, c.kind, c.bytes);
  }
  return totals;
}

}  // namespace moonshard
