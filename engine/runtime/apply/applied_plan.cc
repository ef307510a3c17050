// How a compiled plan becomes a model that runs on shards. Everything was decided when the plan was compiled; here
// tensors are replaced and steps are hung onto modules. What is difficult is not the work but its failure: a rank that
// throws while the others go on leaves them in a collective that never completes. So the way is in three stretches:
//
//   1. checks without communication (CheckApplicable): the same input on every rank, hence the same refusal on each
//   2. Agree: the hash of the compiled plan is compared over all ranks. From here on, ranks that compute something from
//      the plan compute the same thing, and any order that follows from the plan is a common order
//   3. Applier: collectives in the plan's order first, then changes of the model, each with its undo
//
// Behind the broadcast of values, where the host chose one, nothing communicates, so a failure there is a rank's own
// (memory, a module of the host) and is undone by that rank alone.
//
// Gradients. Which gradients are terms of a sum, and over which ranks, follows from a parameter's placement alone
// (gradient_sums.h). Three ways lead to .grad, and every parameter takes one of them:
//
//   placement                                   who brings the sum to .grad
//   tp: replicate or a shard of its own         autograd: this rank's gradient is final
//   tp: shared, or a shard with replicas        GradientSum at the end of the backward, over the ranks with the same
//   dp: replicated (ddp)                        GradientSum in buckets, while the backward runs
//   dp: sharded (fsdp)                          the unit's reduce-scatter; then GradientSum by hand, where the shard is
//                                               summed over a further axis
//
// Two sums over one element would multiply it by the number of ranks, and none would train replicas apart. Neither
// shows as an error, so the assignment is made in one place (SumGradients) and every parameter passes it once.
#include "engine/runtime/apply/applied_plan.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include "engine/core/base/check.h"
#include "engine/core/base/text.h"
#include "engine/plan/compile/compiled_plan.h"
#include "engine/plan/compile/context_parallel.h"
#include "engine/plan/compile/data_parallel.h"
#include "engine/plan/compile/gradient_sums.h"
#include "engine/plan/compile/local_shape.h"
#include "engine/plan/compile/mesh_axes.h"
#include "engine/runtime/apply/apply_checks.h"
#include "engine/runtime/apply/axis_inputs.h"
#include "engine/runtime/apply/axis_ring.h"
#include "engine/runtime/apply/boundary_steps.h"
#include "engine/runtime/apply/factors.h"
#include "engine/runtime/apply/gradient_guard.h"
#include "engine/runtime/apply/input_signature.h"
#include "engine/runtime/apply/local_shard.h"
#include "engine/runtime/apply/random_numbers.h"
#include "engine/runtime/apply/units.h"
#include "engine/runtime/collective/store_group.h"
#include "engine/runtime/nn/defer_init.h"
#include "engine/runtime/nn/late_parameter.h"
#include "engine/runtime/redistribute/gradient_sum.h"

namespace moonshard {

struct AppliedPlan::State {
  State(CompiledPlan p, DeviceMesh m)
      : plan(std::move(p)),
        mesh(std::move(m)),
        gradient_sum(std::make_shared<GradientSum>(
            backward_end, "the sum of the gradients of replicated parameters" + LineOfSection(plan))) {}

  CompiledPlan plan;
  DeviceMesh mesh;
  LiveTree live;
  std::vector<std::shared_ptr<torch::nn::Module>> keep;  // the hooked modules outlive the plan
  std::shared_ptr<CollectiveCounts> counts = std::make_shared<CollectiveCounts>();
  std::shared_ptr<ExpertLoads> loads = std::make_shared<ExpertLoads>();
  PlanGroups groups;
  std::vector<LiveParameter> parameters;
  std::shared_ptr<BackwardEnd> backward_end = std::make_shared<BackwardEnd>();
  std::shared_ptr<GradientSum> gradient_sum;
  std::vector<std::shared_ptr<Unit>> units;  // as plan.units
  std::shared_ptr<DeferredValues> values;    // null where none was deferred
  std::shared_ptr<ShardGuard> guard = std::make_shared<ShardGuard>();
  std::shared_ptr<RandomStreams> streams;  // null on a tp axis of one rank
  std::shared_ptr<CallObservers> observers = std::make_shared<CallObservers>();
  std::vector<Hookable*> for_observers;  // modules that have a boundary for observers alone
  std::string active_adapter = plan.active_adapter();
  std::shared_ptr<bool> trains = std::make_shared<bool>(true);  // whether the active adapter is that of the plan
};

// Makes everything that can fail by what it is given first; then changes the model. Each change has its undo, for what
// fails all the same (memory, a module of the host). The order:
//   groups             in the order of the plan, which is the same on every rank, because making a group is collective
//   redistributions    of all modules, so that all that cannot be run are reported at once
//   initial values     compared while every rank holds full tensors: shards of different ranks cannot be compared
//   broadcast          writes values, and only where that is the host's choice
//   adapters           factors become modules of the model, all other parameters are frozen
//   HoldBack, rows     requests to modules, one of which may not be able to: from here on the model changes
//   parameters         become shards
//   units, then sums   a unit brings its parameters' gradients to the sum by itself, which the sum has to know before a
//                      parameter is added to it
//   boundaries         last: the next call of a module runs the plan
class Applier {
 public:
  Applier(AppliedPlan::State& state, const ApplyOptions& options) : s_(state), options_(options) {}

  void Run() {
    try {
      RunSteps();
    } catch (...) {
      for (auto take_back = undo_.rbegin(); take_back != undo_.rend(); ++take_back) {
        try {
          (*take_back)();
        } catch (...) {  // a module of the host, which keeps no other from being taken back
        }
      }
      throw;
    }
  }

 private:
  void RunSteps() {
    for (const PlannedGroup& group : s_.plan.groups) {
      s_.groups[group] = AxisGroup::MakeSub(s_.mesh, group.axes, group.ranks, options_.check, s_.counts);
    }
    s_.streams = MakeStreams(*s_.groups.at({MeshAxis::kTp, s_.plan.mesh.size(MeshAxis::kTp)}));
    if (!s_.mesh.device().is_meta()) s_.values = DeferredValues::Of(s_.live);  // where values can be
    for (size_t m = 0; m < s_.plan.tree->modules().size(); ++m) {
      redistributions_.push_back(MakeRedistributions(s_.plan, m, s_.groups, diagnostics_));
    }
    if (!diagnostics_.empty()) throw PlanError(std::move(diagnostics_));
    InjectFactors(s_.live, s_.plan, options_.deferred_type, undo_);
    if (options_.initial == InitialValues::kCompare) CompareInitialValues(s_.live, s_.mesh);
    if (options_.initial == InitialValues::kBroadcast) BroadcastInitialValues(s_.live, s_.mesh, options_.check);
    RequestOfModules();
    ShardParameters();
    PlannedUnits units = MakeUnits(s_.plan, s_.parameters, s_.mesh.rank(), s_.groups, s_.backward_end, s_.gradient_sum);
    s_.units = units.units;
    SumGradients(units.params);
    SetBoundaries(std::move(units.order));
  }

  const Module& ModuleAt(size_t m) const { return s_.plan.tree->modules()[m]; }

  void SetBoundaries(std::shared_ptr<UnitOrder> order) {
    const BoundaryParts parts = {s_.plan,
                                 s_.mesh.rank(),
                                 s_.groups,
                                 s_.gradient_sum,
                                 s_.values,
                                 s_.guard,
                                 s_.streams,
                                 s_.units,
                                 std::move(order),
                                 s_.observers,
                                 s_.plan.sharded_dims,
                                 options_.check_inputs,
                                 s_.loads,
                                 std::make_shared<ExchangesAhead>(),
                                 s_.trains,
                                 HasOwnInputs(s_.plan)};
    std::vector<std::pair<Hookable*, std::shared_ptr<Boundary>>> made;
    for (size_t m = 0; m < s_.live.modules.size(); ++m) {
      if (s_.live.hooks[m] == nullptr) continue;
      std::shared_ptr<BoundaryStep> guard;
      if (!options_.unreduced_gradients) guard = MakeGradientGuard(s_.plan, m, s_.live, s_.observers, s_.trains);
      if (s_.plan.StepsOf(m).empty() && !guard) continue;
      std::vector<Late> late;
      for (const std::string& name : LateParameters(m)) late.push_back({TensorAt(m, name), LateDimOf(m, name)});
      made.emplace_back(s_.live.hooks[m],
                        MakeBoundary(parts, m, std::move(redistributions_[m]), std::move(late), std::move(guard)));
    }
    for (auto& [hook, boundary] : made) hook->SetBoundary(std::move(boundary));  // fails nowhere
  }

  const at::Tensor& TensorAt(size_t m, const std::string& name) const {
    const ModuleTree::Signature& signature = s_.plan.tree->parameters(ModuleAt(m));
    const auto found = std::ranges::find(signature, name, &Parameter::name);
    Check(found != signature.end(), "a compiled step names a parameter that does not exist");
    return s_.live.tensors[m][static_cast<size_t>(found - signature.begin())];
  }

  // The parameters that the module leaves out of its forward and its boundary adds.
  std::vector<std::string> LateParameters(size_t m) const {
    for (const ModuleStep& step : s_.plan.StepsOf(m).leave) {
      if (step.kind != StepKind::kAddParameters) continue;
      if (!step.in_forward || (step.moves_on_tp && s_.mesh.as_if_tp())) return s_.plan.LayoutsOf(m).after;
    }
    return {};
  }

  int64_t LateDimOf(size_t m, const std::string& name) const {
    const auto* adds = dynamic_cast<const nn::AddsAlong*>(s_.live.modules[m]);
    return adds == nullptr ? -1 : adds->LateDim(name);
  }

  // Requests what modules must do differently under the plan (HoldBack, SetLocalRows). Both change the meaning of the
  // next forward, so they come after all checks and have an undo. Refusals are collected over all modules before
  // anything is thrown. With tp=1 a lookup has all rows and stays as it is.
  void RequestOfModules() {
    for (size_t m = 0; m < s_.live.modules.size(); ++m) {
      Hookable* hook = s_.live.hooks[m];
      for (const std::string& name : LateParameters(m)) {
        if (const int64_t dim = LateDimOf(m, name); dim >= 0) {
          Refuse(m, "adds parameter '" + name + "' along dim " + std::to_string(dim),
                 "a class whose LateDim returns a dim that is counted from the end: -1 is the last");
        } else if (hook->HoldBack(name)) {
          undo_.emplace_back([hook, name] { hook->ReleaseBack(name); });
        } else {
          Refuse(
              m,
              "cannot leave parameter '" + name + "' out of its forward; the plan adds it after the output is reduced",
              "moonshard::nn::Linear, Conv1d, Conv2d or Conv3d (with padding_mode zeros), or a class with bool "
              "HoldBack(std::string_view), which adds the parameter along the last dim, or along the dim that its "
              "LateDim returns (moonshard::nn::AddsAlong)");
        }
      }
      if (!s_.plan.StepsOf(m).local_rows) continue;
      const int64_t total = TensorAt(m, "weight").size(0);
      const Interval rows = RowsOf(m, total);
      if (hook->SetLocalRows(rows.begin, rows.length, total)) {
        undo_.emplace_back([hook, total] { hook->SetLocalRows(0, total, total); });
      } else {
        Refuse(m, "cannot look up ids in a table of which this rank holds only some rows",
               ModuleAt(m).kind == "EmbeddingBag"
                   ? "moonshard::nn::EmbeddingBag with mode kSum or kMean, without max_norm and scale_grad_by_freq; or "
                     "colwise {}, which shards the columns"
                   : "moonshard::nn::Embedding without max_norm and scale_grad_by_freq, or a class with "
                     "bool SetLocalRows(int64_t, int64_t, int64_t)");
      }
    }
    RequestLowRank();
    RequestRings();
    RequestOwnInputs();
    if (!diagnostics_.empty()) throw PlanError(std::move(diagnostics_));
  }

  // Each adapted module gets the term of the active adapter, or none: a module without support is refused here, also if
  // only other adapters adapt it, and not by SetActiveAdapter.
  void RequestLowRank() {
    const std::string active = s_.plan.active_adapter();
    std::map<std::string, const Adapter*> adapters;  // by path: the active one, or one of the others
    for (const auto& [path, section] : s_.plan.adapted) {
      const Adapter& adapter = s_.plan.plan->adapters[static_cast<size_t>(section)];
      if (adapter.name == active || !adapters.contains(path)) adapters[path] = &adapter;
    }
    for (const auto& [path, adapter] : adapters) {
      const auto m = static_cast<size_t>(s_.plan.tree->Find(path));
      Hookable* hook = s_.live.hooks[m];
      if (hook != nullptr && hook->SetLowRank(adapter->name == active ? LowRankOf(s_.live, path, *adapter) : nullptr)) {
        undo_.emplace_back([hook] { hook->SetLowRank(nullptr); });
        continue;
      }
      Diagnostic d =
          MakeDiagnostic(Finding::kStyleDoesNotFit, ModuleName(path) + " does not support an adapter", adapter->source);
      d.path = path;
      d.declared = ToText(*adapter) + " on " + ModuleAt(m).kind;
      d.required =
          "moonshard::nn::Linear or Embedding, or a class with bool SetLowRank(std::shared_ptr<const LowRank>), called "
          "through its holder";
      diagnostics_.push_back(std::move(d));
    }
  }

  // CheckApplicable has checked that the modules support it.
  void RequestRings() {
    for (size_t m = 0; m < s_.live.modules.size(); ++m) {
      if (!s_.plan.LayoutsOf(m).ring || s_.plan.mesh.size(MeshAxis::kCp) == 1) continue;
      const std::string attention(ParentOf(ModuleAt(m).path));
      Hookable* hook = s_.live.hooks[static_cast<size_t>(s_.plan.tree->Find(attention))];
      const auto ring = std::make_shared<const AxisRing>(
          s_.groups.at({MeshAxis::kCp, s_.plan.mesh.size(MeshAxis::kCp)}), attention,
          s_.plan.LayoutsOf(m).inputs.front()->to[MeshAxis::kCp].zigzag, s_.plan.mesh.cp_heads());
      Check(hook->SetRing(ring), "a module refuses a ring that it supports");
      undo_.emplace_back([hook] { hook->SetRing(nullptr); });
    }
  }

  // CheckApplicable has checked that a module supports it.
  void RequestOwnInputs() {
    if (!HasOwnInputs(s_.plan)) return;
    for (size_t m = 0; m < s_.live.modules.size(); ++m) {
      auto* const takes = dynamic_cast<TakesOwnInputs*>(s_.live.modules[m]);
      if (takes == nullptr) continue;
      takes->SetOwnInputs(
          std::make_shared<const AxisInputs>(s_.groups.at({MeshAxis::kCp, s_.plan.mesh.size(MeshAxis::kCp)}),
                                             s_.plan.own_tokens(), ModuleAt(m).path, s_.mesh.recording()));
      undo_.emplace_back([takes] { takes->SetOwnInputs(nullptr); });
    }
  }

  const Placement& WeightOf(size_t m) const {
    const ModuleTree::Signature& signature = s_.plan.tree->parameters(ModuleAt(m));
    const auto weight = std::ranges::find(signature, "weight", &Parameter::name) - signature.begin();
    return s_.plan.LayoutsOf(m).params[static_cast<size_t>(weight)];
  }

  Interval RowsOf(size_t m, int64_t total) const {
    const Placement placement = Gathered(WeightOf(m));
    const std::vector<Interval> rows = LocalIntervals({total}, placement, s_.plan.mesh, s_.mesh.rank()).front();
    return rows.empty() ? Interval{total, 0} : rows.front();
  }

  void Refuse(size_t m, const std::string& what, const std::string& required) {
    Diagnostic d = MakeDiagnostic(Finding::kStyleDoesNotFit, ModuleName(ModuleAt(m).path) + " " + what,
                                  SourceOf(s_.plan, s_.plan.LayoutsOf(m)));
    d.path = ModuleAt(m).path;
    d.declared = "style " + s_.plan.LayoutsOf(m).style + " on " + ModuleAt(m).kind;
    d.required = required;
    diagnostics_.push_back(std::move(d));
  }

  // Every distinct tensor once; all shards are made before the first parameter is changed: a rank that runs out of
  // memory here still has its full model. The price is that the full tensors and the shards exist together for a
  // moment, which is why large models are built under DeferInit, where a full tensor has no memory.
  //
  // Tied parameters are one TensorImpl and are found by its address. Materialize changes that object in place, so
  // every module, tie and optimizer that holds it sees the shard.
  void ShardParameters() {
    std::map<const void*, size_t> number_of;  // addresses only distinguish tensors; the order is the tree's
    std::vector<at::Tensor> shards;
    for (uint32_t m = 0; m < s_.live.modules.size(); ++m) {
      for (uint32_t p = 0; p < s_.live.tensors[m].size(); ++p) {
        const at::Tensor& tensor = s_.live.tensors[m][p];
        const std::string path = s_.plan.tree->PathOf({m, p});
        const auto [entry, fresh] = number_of.try_emplace(tensor.unsafeGetTensorImpl(), s_.parameters.size());
        if (!fresh) {
          s_.parameters[entry->second].aliases.push_back(path);
          continue;
        }
        const Parameter& parameter = s_.plan.tree->At({m, p});
        ReportShape(m, p, parameter);
        s_.parameters.push_back(
            {path, {}, {m, p}, tensor, parameter.shape, s_.plan.LayoutsOf(m).params[p], parameter.is_buffer});
        shards.push_back(LocalShard(s_.parameters.back(), s_.plan, s_.mesh, options_.deferred_type));
      }
    }
    undo_.reserve(undo_.size() + shards.size());  // what was changed is noted without fail
    for (size_t i = 0; i < shards.size(); ++i) {
      const LiveParameter& parameter = s_.parameters[i];
      const bool deferred = parameter.tensor.is_meta();
      if (shards[i].defined()) {
        // A second handle on what the parameter holds now, and keeps until the plan is applied.
        std::function<void()> take_back = [tensor = parameter.tensor, whole = parameter.tensor.detach(),
                                           gradient = parameter.tensor.grad()]() mutable {
          nn::Materialize(tensor, whole);
          tensor.mutable_grad() = gradient;
        };
        nn::Materialize(s_.parameters[i].tensor, shards[i]);
        undo_.push_back(std::move(take_back));
      }
      if (deferred && s_.values) s_.values->Add(parameter.path, parameter.tensor, parameter.is_buffer);
    }
    std::ranges::sort(s_.parameters, {}, &LiveParameter::path);
  }

  void ReportShape(uint32_t m, uint32_t p, const Parameter& parameter) {
    Hookable* hook = s_.live.hooks[m];
    if (hook == nullptr) return;
    const Placement& placement = s_.plan.LayoutsOf(m).params[p];
    hook->SetLocalShape(parameter.name,
                        s_.plan.StepsOf(m).reports_full_shapes
                            ? parameter.shape
                            : LocalShape(parameter.shape, Gathered(placement), s_.plan.mesh, s_.mesh.rank()));
    undo_.emplace_back([hook, &parameter] { hook->SetLocalShape(parameter.name, parameter.shape); });
  }

  // Registers every parameter whose gradient is partial with the groups over which it is summed (ModuleSteps::sums).
  // An example on tp=4 with a fused q, k, v weight of 8 query heads and 2 key and value heads: the rows of k and v are
  // held by two neighbours each, so they are one term (a range of rows, a group of 2 ranks), and the rows of q are
  // none. A norm that is `shared` is one term over all 4 ranks, with dim -1: all of it.
  //
  // The order of Add is that of `parameters`, sorted by path, and so the same on every rank: it decides the layout of
  // the flat buffer and the order of its collectives. Ranks with different orders would add up different parameters'
  // bytes.
  //
  // The unit of a parameter scales its gradient, so that one is not scaled here; the same holds for the guard, since a
  // unit changes sizes by itself and has a check of its own.
  void SumGradients(const std::set<ParamRef>& in_units) {
    for (const LiveParameter& parameter : s_.parameters) {
      if (!in_units.contains(parameter.ref)) s_.guard->Add(parameter.path, parameter.tensor, parameter.shape);
      if (parameter.is_buffer) continue;
      for (const PlannedSum& sum : s_.plan.StepsOf(parameter.ref.module).sums) {
        if (sum.param != parameter.ref.param) continue;
        const std::shared_ptr<AxisGroup>& group = s_.groups.at(sum.group);
        if (sum.dim < 0) {
          s_.gradient_sum->Add(parameter.tensor, group);
        } else {
          const Interval elements = ElementsOf(sum, parameter.shape, parameter.placement, s_.plan.mesh, s_.mesh.rank());
          s_.gradient_sum->Add(parameter.tensor, group, sum.dim, elements.begin, elements.length);
        }
      }
      if (!in_units.contains(parameter.ref) && s_.plan.Trains(parameter.ref)) {
        s_.gradient_sum->Scale(parameter.tensor, s_.plan.gradient_scale);
      }
      s_.gradient_sum->SetPath(parameter.tensor, parameter.path);
    }
    SumInBuckets(s_.plan, s_.parameters, s_.groups, *s_.gradient_sum);
  }

  AppliedPlan::State& s_;
  const ApplyOptions& options_;
  Diagnostics diagnostics_;
  std::vector<std::function<void()>> undo_;                         // of what was changed in the model, in order
  std::vector<std::vector<TensorRedistribution>> redistributions_;  // by module
};

AppliedPlan::AppliedPlan(std::unique_ptr<State> state) : state_(std::move(state)) {}

AppliedPlan::~AppliedPlan() = default;

// The findings go to the host after the ranks have agreed and before the model changes: a host that throws from the
// callback stops with its model as it was. `keep` holds the modules alive: `live` has plain pointers to them, which
// Watch and Findings use as long as the plan lives.
std::shared_ptr<AppliedPlan> AppliedPlan::Apply(const LiveTree& live, CompiledPlan plan, const DeviceMesh& mesh,
                                                const ApplyOptions& options) {
  Check(plan.mesh == mesh.shape(), "the plan was compiled for another mesh");
  Diagnostics wrong = CheckApplicable(live, plan);
  if (!options.independent_replicas) {
    for (Diagnostic& d : IndependentReplicas(plan)) {
      d.severity = Severity::kError;
      wrong.push_back(std::move(d));
    }
  }
  if (HasErrors(wrong)) throw PlanError(std::move(wrong));
  Agree(mesh, "the compiled plan", plan.CanonicalText());
  if (options.on_findings && !plan.findings.empty()) options.on_findings(plan.findings);
  auto state = std::make_unique<State>(std::move(plan), mesh);
  state->live = live;
  for (torch::nn::Module* module : live.modules) {
    // The root may live on the stack; its children are shared.
    if (auto shared = module->weak_from_this().lock()) state->keep.push_back(std::move(shared));
  }
  Applier(*state, options).Run();
  return std::shared_ptr<AppliedPlan>(new AppliedPlan(std::move(state)));
}

const CompiledPlan& AppliedPlan::plan() const { return state_->plan; }
const DeviceMesh& AppliedPlan::mesh() const { return state_->mesh; }
const std::vector<LiveParameter>& AppliedPlan::parameters() const { return state_->parameters; }
torch::nn::Module& AppliedPlan::ModuleOf(const LiveParameter& parameter) const {
  return *state_->live.modules[parameter.ref.module];
}
AxisGroup& AppliedPlan::group(MeshAxis axis) const { return *state_->groups.at({axis, state_->plan.mesh.size(axis)}); }
bool AppliedPlan::has_group(MeshAxis axis) const {
  return state_->groups.contains({axis, state_->plan.mesh.size(axis)});
}

void AppliedPlan::SetGradientSync(bool sync) {
  for (const std::shared_ptr<Unit>& unit : state_->units) unit->SetGradientSync(sync);
  state_->gradient_sum->SetSums(sync);
}
void AppliedPlan::DropUnsyncedGradients() {
  for (const std::shared_ptr<Unit>& unit : state_->units) unit->DropUnsynced();
  state_->gradient_sum->DropUnsynced();
}
// What is compiled for training (sums, buckets, units, streams of dropout) is for the factors of the plan's adapter. So
// another one is a term of constants, and no part of the graph.
void AppliedPlan::SetActiveAdapter(const std::string& name) {
  Agree(state_->mesh, "the active adapter", name);
  const CompiledPlan& plan = state_->plan;
  std::vector<std::string> names;
  for (const Adapter& adapter : plan.plan->adapters) names.push_back(adapter.name);
  if (!name.empty() && std::ranges::count(names, name) == 0) {
    Diagnostic d = MakeDiagnostic(Finding::kBadArgument, "the plan has no adapter '" + name + "'");
    d.help = DidYouMean(name, names);
    throw PlanError({std::move(d)});
  }
  std::map<Hookable*, std::shared_ptr<const LowRank>> terms;
  for (const auto& [path, section] : plan.adapted) {
    Adapter adapter = plan.plan->adapters[static_cast<size_t>(section)];
    std::shared_ptr<const LowRank>& term = terms[state_->live.hooks[static_cast<size_t>(plan.tree->Find(path))]];
    if (adapter.name != name) continue;
    if (name != plan.active_adapter()) adapter.dropout = 0;
    term = LowRankOf(state_->live, path, adapter);
  }
  for (const auto& [hook, term] : terms) Check(hook->SetLowRank(term), "an adapted module refuses its term");
  state_->active_adapter = name;
  *state_->trains = name == plan.active_adapter();
}

const std::string& AppliedPlan::active_adapter() const { return state_->active_adapter; }

const std::vector<std::shared_ptr<Unit>>& AppliedPlan::units() const { return state_->units; }
std::optional<bool> AppliedPlan::draws_own_numbers() const {
  if (!state_->streams) return std::nullopt;
  return state_->streams->now() == RandomStream::kOwn;
}
bool AppliedPlan::shares_generator() const { return state_->streams && !state_->streams->switches(); }
CollectiveCounts AppliedPlan::counts() const { return *state_->counts; }
std::vector<ExpertLoad> AppliedPlan::expert_loads() const { return state_->loads->All(); }

void AppliedPlan::ClearCounts() {
  *state_->counts = {};
  state_->loads->Clear();
}

// A module without steps has no boundary, so that its calls cost nothing; it gets an empty one while it is
// observed.
void AppliedPlan::Watch(CallObserver& observer, bool all) {
  state_->observers->push_back(&observer);
  for (size_t m = 0; m < state_->live.modules.size(); ++m) {
    Hookable* hook = state_->live.hooks[m];
    if (hook == nullptr || hook->boundary() != nullptr || !(all || state_->plan.StepsOf(m).planned)) continue;
    hook->SetBoundary(std::make_shared<Boundary>(Boundary::Steps{}, m, "", state_->observers));
    state_->for_observers.push_back(hook);
  }
}

void AppliedPlan::Unwatch(CallObserver& observer) {
  std::erase(*state_->observers, &observer);
  if (!state_->observers->empty()) return;
  for (Hookable* hook : state_->for_observers) hook->SetBoundary(nullptr);
  state_->for_observers.clear();
}

Diagnostics AppliedPlan::Findings() const { return FindUncalled(state_->plan, state_->live); }

}  // namespace moonshard
