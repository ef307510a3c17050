#include "engine/compile/cost.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "engine/compile/local_shape.h"

namespace moonshard {
namespace {

std::string_view ParentOf(std::string_view path) {
  const size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
}

bool IsSharded(const Placement& placement, const MeshShape& mesh) {
  return std::ranges::any_of(kMeshAxes,
                             [&](MeshAxis axis) { return mesh.size(axis) > 1 && placement[axis].is_shard(); });
}

// Parameters that are not the first of their tie: stored and counted with the first.
std::set<ParamRef> Repeats(const ModuleTree& tree) {
  std::set<ParamRef> out;
  for (const auto& tie : tree.ties()) out.insert(tie.begin() + 1, tie.end());
  return out;
}

// The axis on which a move communicates; none where it does not.
std::optional<MeshAxis> MovingAxis(const std::optional<Move>& move, const MeshShape& mesh) {
  if (!move) return std::nullopt;
  for (MeshAxis axis : kMeshAxes) {
    if (mesh.size(axis) > 1 && move->from[axis] != move->to[axis]) return axis;
  }
  return std::nullopt;
}

bool CutsSequence(const std::optional<Move>& move) {
  if (!move) return false;
  return move->from[MeshAxis::kTp] == Layout::Shard(1) || move->to[MeshAxis::kTp] == Layout::Shard(1);
}

class Counter {
 public:
  Counter(const CompiledPlan& plan, Tokens tokens) : plan_(plan), tokens_(tokens.batch * tokens.sequence) {}

  CollectiveTotals Count() {
    const std::vector<Module>& modules = plan_.tree->modules();
    size_t most_inputs = 0;
    for (const ModuleSteps& steps : plan_.steps) most_inputs = std::max(most_inputs, steps.inputs.size());
    for (size_t position = 0; position < most_inputs; ++position) CountInputs(position);
    for (size_t m = 0; m < modules.size(); ++m) {
      const ModuleSteps& steps = plan_.StepsOf(m);
      for (const std::optional<Move>& move : steps.outputs) Add(move, steps.out_features, DTypeOf(m));
    }
    CountGradientSums();
    return totals_;
  }

 private:
  DType DTypeOf(size_t module) const {
    const ModuleTree::Signature& signature = plan_.tree->parameters(plan_.tree->modules()[module]);
    return signature.empty() ? DType::kF32 : signature.front().dtype;
  }

  void CountInputs(size_t position) {
    // The first module that asks for a move of its parent's tensor pays for its siblings.
    std::set<std::pair<std::string_view, std::string>> paid;
    const std::vector<Module>& modules = plan_.tree->modules();
    for (size_t m = 0; m < modules.size(); ++m) {
      const ModuleSteps& steps = plan_.StepsOf(m);
      if (position >= steps.inputs.size() || !MovingAxis(steps.inputs[position], plan_.mesh)) continue;
      const Move& move = *steps.inputs[position];
      if (!paid.emplace(ParentOf(modules[m].path), move.from.ToText() + move.to.ToText()).second) continue;
      Add(steps.inputs[position], steps.in_features, DTypeOf(m));
    }
  }

  void Add(const std::optional<Move>& move, int64_t features, DType dtype) {
    const std::optional<MeshAxis> axis = MovingAxis(move, plan_.mesh);
    if (!axis) return;
    const std::optional<MoveRow> row = RowOf(move->from[*axis], move->to[*axis]);
    Check(row.has_value(), "a compiled move without a row");
    const int64_t bytes = features < 0 ? 0 : BytesOf(dtype, tokens_ * features);
    if (row->forward) totals_.AddForward(*row->forward, bytes);
    if (row->backward) totals_.AddBackward(*row->backward, bytes);
  }

  void CountGradientSums() {
    std::map<std::pair<GradientGroup, DType>, int64_t> bytes;
    const std::set<ParamRef> repeats = Repeats(*plan_.tree);
    for (uint32_t m = 0; m < plan_.tree->modules().size(); ++m) {
      const ModuleSteps& steps = plan_.StepsOf(m);
      for (uint32_t p = 0; p < steps.params.size(); ++p) {
        const std::optional<GradientGroup> group = GradientGroupOf(steps.params[p], plan_.mesh);
        const Parameter& parameter = plan_.tree->At({m, p});
        if (!group || parameter.is_buffer || repeats.contains({m, p})) continue;
        int64_t elements = 1;
        for (int64_t size : LocalShape(parameter.shape, steps.params[p], plan_.mesh, 0)) elements *= size;
        // Each brings one element more, which says whether this rank used it (layout/gradient_sum.h).
        bytes[{*group, parameter.dtype}] += BytesOf(parameter.dtype, elements + 1);
      }
    }
    for (const auto& [key, sum] : bytes) totals_.AddBackward(Collective::kAllReduce, sum);
  }

  const CompiledPlan& plan_;
  int64_t tokens_;
  CollectiveTotals totals_;
};

}  // namespace

std::optional<GradientGroup> GradientGroupOf(const Placement& placement, const MeshShape& mesh) {
  for (MeshAxis axis : kMeshAxes) {
    const Layout& layout = placement[axis];
    const int64_t ranks = mesh.size(axis);
    if (ranks == 1) continue;
    if (layout.kind == LayoutKind::kShared) return GradientGroup{axis, ranks};
    if (layout.is_shard() && layout.heads > 0 && layout.heads < ranks) return GradientGroup{axis, ranks / layout.heads};
  }
  return std::nullopt;
}

std::vector<int> SharedUses(const CompiledPlan& plan, size_t position) {
  const std::vector<Module>& modules = plan.tree->modules();
  std::map<std::pair<std::string_view, std::string>, int> uses;
  std::vector<std::string> keys(modules.size());
  for (size_t m = 0; m < modules.size(); ++m) {
    const ModuleSteps& steps = plan.StepsOf(m);
    if (position >= steps.inputs.size() || !MovingAxis(steps.inputs[position], plan.mesh)) continue;
    keys[m] = steps.inputs[position]->from.ToText() + " -> " + steps.inputs[position]->to.ToText();
    ++uses[{ParentOf(modules[m].path), keys[m]}];
  }
  std::vector<int> out(modules.size(), 0);
  for (size_t m = 0; m < modules.size(); ++m) {
    if (!keys[m].empty()) out[m] = uses[{ParentOf(modules[m].path), keys[m]}];
  }
  return out;
}

PlanTotals TotalsOf(const CompiledPlan& plan, int64_t rank, std::optional<Tokens> tokens) {
  PlanTotals totals;
  const std::set<ParamRef> repeats = Repeats(*plan.tree);
  bool cuts_sequence = false;
  for (uint32_t m = 0; m < plan.tree->modules().size(); ++m) {
    const ModuleSteps& steps = plan.StepsOf(m);
    for (const auto* moves : {&steps.inputs, &steps.outputs}) {
      cuts_sequence |= std::ranges::any_of(*moves, CutsSequence);
    }
    for (uint32_t p = 0; p < steps.params.size(); ++p) {
      if (repeats.contains({m, p})) continue;
      const Parameter& parameter = plan.tree->At({m, p});
      int64_t local = 1;
      for (int64_t size : LocalShape(parameter.shape, steps.params[p], plan.mesh, rank)) local *= size;
      totals.bytes_per_rank += BytesOf(parameter.dtype, local);
      if (parameter.is_buffer) continue;
      const int64_t elements = parameter.elements();
      totals.params += elements;
      (IsSharded(steps.params[p], plan.mesh) ? totals.sharded_params : totals.replicated_params) += elements;
    }
  }
  if (!tokens) tokens = Tokens{1, cuts_sequence ? plan.mesh.size(MeshAxis::kTp) : 1};
  totals.collectives = Counter(plan, *tokens).Count();
  return totals;
}

}  // namespace moonshard
