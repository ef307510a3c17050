#include "engine/plan/compile/data_parallel.h"

#include <algorithm>
#include <map>
#include <set>

#include "engine/plan/compile/checks.h"
#include "engine/plan/compile/gradient_sums.h"
#include "engine/plan/compile/local_shape.h"
#include "engine/plan/compile/precision.h"

namespace moonshard {
namespace {

// Which parameters a unit holds: each parameter belongs to the nearest module around it that the section's `wrap`
// names, and to the root where there is none; a tied tensor, which has one storage, once. Units come in tree order,
// which is about the order in which a forward uses them: the first prefetch needs no more.
//
// Every parameter of a unit is shard(0) on dp_shard on top of what tp makes of it: tp shards first, so that the gather
// over dp_shard gives tp's shard, which compute works on. On dp_replicate it is `shared`: shards of several replicas
// sum their gradients after the reduce-scatter, on fewer bytes. What no unit can hold, a single number or a module that
// the section ignores, is `shared` on both axes and summed as ddp's are.
//
// The ranks of cp have other tokens of the same rows, so that their gradients are terms as those of dp_shard are, and
// one collective over the ranks of both axes serves both. Each axis has a plain shard of its own, which every reader of
// placements knows; in the flat buffers, the rows of a rank follow from both (runtime/fsdp/flat_shards.h).
//
// A unit goes back to shards after its forward unless its parameters are needed again at once: those of the root, and
// with all_but_last those of the last unit of each list, whose backward comes first.

class DataParallelCompiler {
 public:
  DataParallelCompiler(const MatchedPlan& matched, CompiledPlan& plan, Diagnostics& diagnostics)
      : matched_(matched),
        plan_(plan),
        section_(plan.plan->data_parallel ? *plan.plan->data_parallel : none_),
        shards_(plan.unit_settings.ranks > 1),
        diagnostics_(diagnostics) {}

  void Run() {
    SplitIgnored();
    for (size_t i = 0; i < plan_.layouts.size(); ++i) Place(plan_.layouts[i], ignored_.contains(i));
    if (shards_ || ChangesDType(plan_)) MakeUnits();
  }

 private:
  // Ignored modules get layouts of their own: others of their kind are sharded. Layouts are shared by all modules that
  // are alike, so to change those of one module in place would change its siblings.
  void SplitIgnored() {
    const std::vector<Module>& modules = plan_.tree->modules();
    std::map<uint32_t, uint32_t> own;
    for (size_t m = 0; m < modules.size(); ++m) {
      if (!IsIgnored(modules[m].path)) continue;
      const auto [entry, fresh] = own.try_emplace(plan_.layouts_of[m], static_cast<uint32_t>(plan_.layouts.size()));
      if (fresh) {
        ModuleLayouts copy = plan_.layouts[plan_.layouts_of[m]];
        plan_.layouts.push_back(std::move(copy));
        ignored_.insert(entry->second);
      }
      plan_.layouts_of[m] = entry->second;
    }
  }

  // By itself or by what holds it.
  bool IsIgnored(std::string_view path) const {
    while (!matched_.ignored.empty()) {
      if (std::ranges::binary_search(matched_.ignored, path)) return true;
      if (path.empty()) break;
      path = ParentOf(path);
    }
    return false;
  }

  // For each parameter, its layout on the data-parallel axes and, of a plan that shards the sequence on cp, on cp (the
  // comment above has the reasons):
  //
  //                                    dp_replicate     dp_shard     ep          cp
  //   ddp                              shared           shared       shared      shared
  //   fsdp, in a unit                  shared           shard(0)     shared      shard(0)
  //   fsdp, ignored or a number        shared           shared       shared      shared
  //   an expert that ep distributes    shared           as above     its shard   as above
  //
  // From these layouts alone the sums of gradients follow (gradient_sums.h): shared adds a term over the axis,
  // shard(0) none, since the reduce-scatter has summed it.
  void Place(ModuleLayouts& layouts, bool ignored) {
    if (!plan_.plan->data_parallel) return;
    const ModuleTree::Signature& signature = plan_.tree->signatures()[layouts.signature];
    for (size_t p = 0; p < layouts.params.size(); ++p) {
      if (signature[p].is_buffer) continue;
      Placement& placement = layouts.params[p];
      CheckFree(layouts, signature[p], placement);
      const bool shards = shards_ && !ignored && !signature[p].shape.empty();
      if (shards) CheckReplicas(layouts, signature[p], placement);
      for (MeshAxis axis : kDataAxes) {
        const bool distributed = axis == MeshAxis::kEp && placement[axis].is_shard();
        if (plan_.mesh.size(axis) > 1 && !distributed) placement[axis] = Layout::Shared();
      }
      if (!shards) continue;
      for (MeshAxis axis : plan_.unit_settings.axes.axes()) {
        if (plan_.mesh.size(axis) > 1) placement[axis] = Layout::Shard(0);
      }
    }
  }

  Diagnostic Of(Finding finding, const std::string& message) const {
    return MakeDiagnostic(finding, message, section_.source);
  }

  void CheckFree(const ModuleLayouts& layouts, const Parameter& parameter, const Placement& placement) {
    // Layouts on ep: expert_parallel.h.
    for (MeshAxis axis : {MeshAxis::kDpReplicate, MeshAxis::kDpShard, MeshAxis::kCp}) {
      const bool sequence = axis == MeshAxis::kCp && placement[axis] == Layout::Shared();  // context_parallel.h
      if (placement[axis] == Layout::Replicate() || sequence) continue;
      Diagnostic d = Of(Finding::kNotSupported,
                        std::string("a layout on ") + ToString(axis) + " cannot be combined with " + section_.name());
      d.declared = parameter.name + " " + placement.ToText() + ", by style '" + layouts.style + "'";
      d.required = std::string("layouts on tp only, or no ") + section_.name() + " section";
      diagnostics_.push_back(std::move(d));
    }
  }

  // Which rows of such a weight are summed over which ranks does not follow from its shards any more.
  void CheckReplicas(const ModuleLayouts& layouts, const Parameter& parameter, const Placement& placement) {
    const std::vector<GradientTerm> terms = GradientTermsOf(parameter.shape, placement, plan_.mesh, 0);
    if (std::ranges::none_of(terms, [](const GradientTerm& term) { return term.dim >= 0; })) return;
    Diagnostic d = Of(Finding::kNotSupported,
                      "fsdp cannot shard a fused weight if a part of the weight has fewer heads than tp has ranks");
    d.declared = parameter.name + " " + placement.ToText() + ", by style '" + layouts.style + "'";
    d.required = "at least as many heads as ranks of tp in each part, or ddp {}";
    diagnostics_.push_back(std::move(d));
  }

  void MakeUnits() {
    const std::vector<Module>& modules = plan_.tree->modules();
    std::set<std::string> wrapped(matched_.units.begin(), matched_.units.end());
    wrapped.insert("");
    std::map<std::string_view, size_t> unit_of_path;
    for (const std::string& path : wrapped) {
      unit_of_path[path] = plan_.units.size();
      plan_.units.push_back({path, {}, true});
      CheckHookable(path);
    }
    const std::set<ParamRef> repeats = TiedCopies(*plan_.tree);
    for (uint32_t m = 0; m < modules.size(); ++m) {
      const ModuleTree::Signature& signature = plan_.tree->parameters(modules[m]);
      for (uint32_t p = 0; p < signature.size(); ++p) {
        if (signature[p].is_buffer || signature[p].shape.empty() || repeats.contains({m, p})) continue;
        if (ignored_.contains(plan_.layouts_of[m])) continue;
        if (!shards_ && ComputeDTypeOf(plan_, modules[m].path).empty()) continue;
        plan_.units[UnitOf(unit_of_path, modules[m].path)].params.push_back({m, p});
      }
    }
    CheckTies(unit_of_path);
    // The root is one whatever it holds: a step begins and ends there.
    std::erase_if(plan_.units, [](const ShardedUnit& unit) { return unit.params.empty() && !unit.path.empty(); });
    std::ranges::sort(plan_.units, {},
                      [](const ShardedUnit& unit) { return unit.params.empty() ? ParamRef{} : unit.params.front(); });
    SetReshard();
  }

  size_t UnitOf(const std::map<std::string_view, size_t>& unit_of_path, std::string_view path) const {
    while (true) {
      const auto found = unit_of_path.find(path);
      if (found != unit_of_path.end()) return found->second;
      Check(!path.empty(), "a tree without a root");
      path = ParentOf(path);
    }
  }

  void CheckHookable(const std::string& path) {
    const int64_t index = plan_.tree->Find(path);
    if (index < 0) return;  // a tree from headers
    const Module& module = plan_.tree->modules()[static_cast<size_t>(index)];
    if (!module.hookable) {
      diagnostics_.push_back(NotHookable(module, "fsdp cannot gather the parameters of the module", section_.source));
    }
  }

  // A tensor of two units would be gathered by one while the other frees it. The unit of a tie is that of its first
  // path, so every other path must lead to the same one.
  void CheckTies(const std::map<std::string_view, size_t>& unit_of_path) {
    const std::vector<Module>& modules = plan_.tree->modules();
    for (const std::vector<ParamRef>& tie : plan_.tree->ties()) {
      const size_t first = UnitOf(unit_of_path, modules[tie.front().module].path);
      for (ParamRef ref : tie) {
        const size_t unit = UnitOf(unit_of_path, modules[ref.module].path);
        if (unit == first) continue;
        Diagnostic d =
            Of(Finding::kTieConflict, "'" + plan_.tree->PathOf(tie.front()) + "' and '" + plan_.tree->PathOf(ref) +
                                          "' are tied (one tensor), but belong to two fsdp units");
        d.path = plan_.tree->PathOf(ref);
        const auto name = [&](size_t u) {
          const std::string& path = plan_.units[u].path;
          return path.empty() ? std::string("the root") : "'" + path + "'";
        };
        d.declared = "units " + name(first) + " and " + name(unit);
        d.required = "one unit that contains both";
        diagnostics_.push_back(std::move(d));
      }
    }
  }

  // The root's parameters are needed again as soon as its forward ends; so are those of the last unit of a list. A
  // list is the units with one parent ("model.layers"): a model with an encoder and a decoder has two, and each one's
  // last layer is the first of its part of the backward.
  void SetReshard() {
    std::map<std::string, ShardedUnit*> last_of_list;
    for (ShardedUnit& unit : plan_.units) {
      unit.reshard = !unit.path.empty() && section_.reshard != DataParallel::Reshard::kNever;
      if (!unit.path.empty()) last_of_list[std::string(ParentOf(unit.path))] = &unit;
    }
    if (section_.reshard == DataParallel::Reshard::kSome) CheckReshardRanks();
    if (section_.reshard != DataParallel::Reshard::kAllButLast) return;
    for (const auto& [list, last] : last_of_list) last->reshard = false;
  }

  void CheckReshardRanks() {
    const int64_t ranks = plan_.unit_settings.ranks;
    if (ranks % section_.reshard_ranks != 0) {
      Diagnostic d = Of(Finding::kStyleDoesNotFit, "fsdp cannot reshard over this number of ranks");
      d.declared = "reshard = " + std::to_string(section_.reshard_ranks);
      d.required = "a number that divides " + ToString(plan_.unit_settings.axes) + "=" + std::to_string(ranks);
      diagnostics_.push_back(std::move(d));
    }
    if (section_.reshard_ranks == ranks) return;
    for (ShardedUnit& unit : plan_.units) {
      if (unit.reshard) unit.reshard_ranks = section_.reshard_ranks;
    }
  }

  const MatchedPlan& matched_;
  CompiledPlan& plan_;
  const DataParallel none_;  // of a plan with precision alone
  const DataParallel& section_;
  const bool shards_;  // parameters are sharded over the ranks of the units
  Diagnostics& diagnostics_;
  std::set<size_t> ignored_;  // layouts
};

UnitSettings SettingsOf(const CompiledPlan& plan) {
  UnitSettings out;
  if (plan.plan->precision) out.reduce_dtype = plan.plan->precision->reduce;
  if (!plan.plan->data_parallel) return out;
  const DataParallel& section = *plan.plan->data_parallel;
  if (section.shards) {
    if (plan.context_parallel && plan.mesh.size(out.axes) == 1) out.axes = {};
    if (plan.context_parallel) out.axes.insert(MeshAxis::kCp);
    out.ranks = plan.mesh.size(out.axes);
  }
  out.keep_unsynced = section.reshard == DataParallel::Reshard::kNever;
  out.accumulate_shards = section.accumulate_shards;
  if (out.ranks == 1) return out;  // every rank gathers from itself
  out.prefetch_forward = section.prefetch_forward;
  out.prefetch_backward = section.prefetch_backward;
  out.offload = section.offload;
  return out;
}

}  // namespace

void CompileDataParallel(const MatchedPlan& matched, CompiledPlan& plan, Diagnostics& diagnostics) {
  plan.unit_settings = SettingsOf(plan);
  if (plan.plan->data_parallel || ChangesDType(plan)) DataParallelCompiler(matched, plan, diagnostics).Run();
}

Placement Gathered(Placement placement) {
  placement[MeshAxis::kDpShard] = Layout::Replicate();
  if (placement[MeshAxis::kCp].is_shard()) placement[MeshAxis::kCp] = Layout::Replicate();
  return placement;
}

}  // namespace moonshard
