#include "engine/runtime/apply/applied_plan.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string_view>

#include <torch/nn/module.h>

#include "engine/plan/compile/cost.h"
#include "engine/plan/compile/data_parallel.h"
#include "engine/plan/compile/gradient_terms.h"
#include "engine/plan/compile/local_shape.h"
#include "engine/plan/compile/source_of.h"
#include "engine/runtime/apply/local_shard.h"
#include "engine/runtime/apply/planned_boundary.h"
#include "engine/runtime/apply/preflight.h"
#include "engine/runtime/apply/random_numbers.h"
#include "engine/runtime/apply/uncalled.h"
#include "engine/runtime/apply/units.h"
#include "engine/runtime/collective/agree.h"
#include "engine/runtime/fsdp/unit_boundary.h"
#include "engine/runtime/nn/defer_init.h"
#include "engine/runtime/recompute/recompute.h"
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
  std::map<MeshAxis, std::shared_ptr<AxisGroup>> groups;
  std::map<GradientGroup, std::shared_ptr<AxisGroup>> gradient_groups;
  std::vector<LiveParameter> parameters;
  std::shared_ptr<BackwardEnd> backward_end = std::make_shared<BackwardEnd>();
  std::shared_ptr<GradientSum> gradient_sum;
  std::vector<std::shared_ptr<Unit>> units;  // as plan.units
  std::shared_ptr<DeferredValues> values;    // null where none was deferred
  std::shared_ptr<ShardGuard> guard = std::make_shared<ShardGuard>();
  std::shared_ptr<RandomStreams> streams;  // null where values are whole, and where ranks share a generator
  std::shared_ptr<OutputObserver> observer = std::make_shared<OutputObserver>();
  std::shared_ptr<CallWatcher*> watcher = std::make_shared<CallWatcher*>(nullptr);
};

namespace {

// Size of the dim that a layout of an input or output shards, where it is one of features; -1 where only the run tells.
int64_t FeatureSize(const Layout& layout, int64_t features) {
  return layout.is_shard() && layout.dim == -1 ? features : -1;
}

}  // namespace

// Makes everything that can fail first; then changes the model.
class Applier {
 public:
  Applier(AppliedPlan::State& state, const ApplyOptions& options) : s_(state), options_(options) {}

  void Run() {
    MakeGroups();
    s_.streams = MakeStreams(*s_.groups.at(MeshAxis::kTp));
    if (!s_.mesh.device().is_meta()) s_.values = DeferredValues::Of(s_.live);  // where values can be
    MakeBoundaries();
    if (!diagnostics_.empty()) throw PlanError(std::move(diagnostics_));
    AskModules();
    CutParameters();
    AddRecomputation(s_.plan, s_.streams, boundaries_);
    AddCasts(s_.plan, boundaries_);
    MakeUnits();
    SumGradients();
    for (size_t m = 0; m < boundaries_.size(); ++m) {
      if (options_.around && s_.live.hooks[m] != nullptr) {
        boundaries_[m] = options_.around(ModuleAt(m).path, std::move(boundaries_[m]));
      }
      if (boundaries_[m]) s_.live.hooks[m]->SetBoundary(boundaries_[m]);
    }
  }

 private:
  const Module& ModuleAt(size_t m) const { return s_.plan.tree->modules()[m]; }

  std::vector<GradientTerm> TermsOf(const std::vector<int64_t>& shape, const Placement& placement) const {
    return GradientTermsOf(shape, placement, s_.plan.mesh, s_.mesh.rank());
  }

  // In the fixed order of axes, then of sub-group sizes: making a group is collective.
  void MakeGroups() {
    std::set<MeshAxis> axes = {MeshAxis::kTp};
    std::set<GradientGroup> sums;
    for (const ModuleSteps& steps : s_.plan.steps) {
      for (const auto* redistributions : {&steps.inputs, &steps.outputs}) {
        for (const std::optional<Redistribution>& move : *redistributions) {
          if (const auto axis = MovingAxis(move, s_.plan.mesh)) axes.insert(*axis);
        }
      }
    }
    for (uint32_t m = 0; m < s_.live.modules.size(); ++m) {
      for (uint32_t p = 0; p < s_.live.tensors[m].size(); ++p) {
        const Placement& placement = s_.plan.StepsOf(m).params[p];
        for (const GradientTerm& term : TermsOf(s_.plan.tree->At({m, p}).shape, placement)) sums.insert(term.group);
        for (MeshAxis axis : kMeshAxes) {
          if (placement[axis].is_shard() && s_.plan.mesh.size(axis) > 1) axes.insert(axis);
        }
      }
    }
    if (!s_.plan.units.empty()) axes.insert(MeshAxis::kDpShard);
    for (MeshAxis axis : {MeshAxis::kDpReplicate, MeshAxis::kDpShard}) {
      if (s_.plan.plan->data_parallel && s_.plan.mesh.size(axis) > 1) axes.insert(axis);
    }
    for (MeshAxis axis : axes) s_.groups[axis] = AxisGroup::Make(s_.mesh, axis, options_.check, s_.counts);
    for (const GradientGroup& sum : sums) {
      s_.gradient_groups[sum] =
          sum.ranks == s_.plan.mesh.size(sum.axis)
              ? (s_.groups.contains(sum.axis) ? s_.groups[sum.axis]
                                              : AxisGroup::Make(s_.mesh, sum.axis, options_.check, s_.counts))
              : AxisGroup::MakeSub(s_.mesh, sum.axis, sum.ranks, options_.check, s_.counts);
    }
  }

  std::optional<TensorRedistribution> MakeRedistribution(const std::optional<Redistribution>& move, int64_t features,
                                                         int uses, const std::string& label) {
    const std::optional<MeshAxis> axis = MovingAxis(move, s_.plan.mesh);
    if (!axis) return std::nullopt;
    const Layout& from = move->from[*axis];
    const Layout& to = move->to[*axis];
    return TensorRedistribution::Make(from, to, s_.groups.at(*axis),
                                      {FeatureSize(from, features), FeatureSize(to, features), label, uses})
        .Collect(diagnostics_);
  }

  // Whether gradients are summed over data-parallel ranks: any backward of the model must take part.
  bool SumsOverData() const {
    return s_.plan.plan->data_parallel &&
           s_.plan.mesh.size(MeshAxis::kDpShard) * s_.plan.mesh.size(MeshAxis::kDpReplicate) > 1;
  }

  void MakeBoundaries() {
    const size_t count = s_.live.modules.size();
    const int64_t watched_root = SumsOverData() || s_.values ? s_.plan.tree->Find("") : -1;
    std::vector<bool> opens_frame(count, false);
    const std::vector<std::vector<SharedRedistribution>> shared = SharedRedistributionsOf(s_.plan);
    for (size_t m = 0; m < count; ++m) {
      if (!s_.plan.StepsOf(m).needs_calls()) continue;
      for (std::string_view path = ModuleAt(m).path; !path.empty();) {
        path = ParentOf(path);
        const int64_t parent = s_.plan.tree->Find(path);
        if (parent >= 0) opens_frame[static_cast<size_t>(parent)] = true;
      }
    }
    const std::set<int64_t> cut_dims = CutDimsOf(s_.plan);
    boundaries_.resize(count);
    for (size_t m = 0; m < count; ++m) {
      const ModuleSteps& steps = s_.plan.StepsOf(m);
      // A module with a rule that moves nothing is intercepted too, for whoever observes the step.
      const bool watched = static_cast<int64_t>(m) == watched_root;
      if (!steps.needs_calls() && !opens_frame[m] && steps.style.empty() && !watched) continue;
      if (s_.live.hooks[m] == nullptr) continue;  // an ordinary ancestor: its children's moves are shared further out
      BoundarySteps boundary;
      boundary.opens_frame = opens_frame[m];
      boundary.path = ModuleAt(m).path;
      boundary.observer = s_.observer;
      boundary.module = m;
      boundary.watcher = s_.watcher;
      if (s_.plan.mesh.size(MeshAxis::kTp) > 1 || SumsOverData()) boundary.gradient_sum = s_.gradient_sum;
      if (s_.plan.mesh.size(MeshAxis::kTp) > 1) {
        boundary.group = s_.groups.at(MeshAxis::kTp);
        std::vector<std::optional<int>> arriving_shards;
        std::vector<bool> replicated;
        for (const std::optional<Redistribution>& move : steps.inputs) {
          replicated.push_back(move && move->from[MeshAxis::kTp] == Layout::Replicate());
          const bool shards = move && move->from[MeshAxis::kTp].is_shard();
          arriving_shards.push_back(shards ? std::optional(move->from[MeshAxis::kTp].dim) : std::nullopt);
        }
        boundary.signature =
            InputSignature(cut_dims, std::move(arriving_shards), std::move(replicated), options_.check_inputs);
      }
      // Line numbers, but no directory: the file may lie elsewhere on another rank.
      const std::string line = " (line " + std::to_string(SourceOf(s_.plan, steps).line) + ")";
      for (size_t i = 0; i < steps.inputs.size(); ++i) {
        boundary.inputs.push_back(MakeRedistribution(steps.inputs[i], steps.in_features, shared[i][m].uses,
                                                     boundary.path + " input " + std::to_string(i) + line));
      }
      for (size_t i = 0; i < steps.outputs.size(); ++i) {
        boundary.outputs.push_back(MakeRedistribution(steps.outputs[i], steps.out_features, 1,
                                                      boundary.path + " output " + std::to_string(i) + line));
      }
      boundary.values = s_.values;
      boundary.guard = s_.guard;
      boundary.streams = s_.streams;
      boundary.inside = StreamInside(s_.plan, m);
      boundary.behind = StreamBehind(steps);
      if (steps.route && s_.plan.mesh.size(MeshAxis::kTp) > 1) {
        boundary.route = steps.route;
        boundary.experts = ExpertsOf(steps.experts);
      }
      for (const std::string& name : steps.after) boundary.late.push_back(TensorAt(m, name));
      boundaries_[m] = std::make_shared<PlannedBoundary>(std::move(boundary));
    }
  }

  LocalExperts ExpertsOf(int64_t experts) const {
    const std::vector<Interval> own =
        LocalIntervals({experts}, Placement(Layout::Shard(0)), s_.plan.mesh, s_.mesh.rank()).front();
    return own.empty() ? LocalExperts{experts, 0} : LocalExperts{own.front().begin, own.front().length};
  }

  const at::Tensor& TensorAt(size_t m, const std::string& name) const {
    const ModuleTree::Signature& signature = s_.plan.tree->parameters(ModuleAt(m));
    const auto found = std::ranges::find(signature, name, &Parameter::name);
    Check(found != signature.end(), "a compiled step names a parameter that is not there");
    return s_.live.tensors[m][static_cast<size_t>(found - signature.begin())];
  }

  // Modules that must work differently are asked, and asked back where one of them refuses.
  void AskModules() {
    std::vector<std::function<void()>> undo;
    for (size_t m = 0; m < s_.live.modules.size(); ++m) {
      const ModuleSteps& steps = s_.plan.StepsOf(m);
      Hookable* hook = s_.live.hooks[m];
      for (const std::string& name : steps.after) {
        if (hook->HoldBack(name)) {
          undo.emplace_back([hook, name] { hook->ReleaseBack(name); });
        } else {
          Refuse(m, "cannot leave parameter '" + name + "' out of its forward",
                 "moonshard::nn::Linear, or a class with bool HoldBack(std::string_view)");
        }
      }
      if (steps.lookup != Lookup::kMasked || s_.plan.mesh.size(MeshAxis::kTp) == 1) continue;
      const int64_t total = TensorAt(m, "weight").size(0);
      const Interval rows = RowsOf(m, total);
      if (hook->SetLocalRows(rows.begin, rows.length, total)) {
        undo.emplace_back([hook, total] { hook->SetLocalRows(0, total, total); });
      } else {
        Refuse(m, "cannot look up in some of its rows only",
               "moonshard::nn::Embedding without max_norm and scale_grad_by_freq, or a class with "
               "bool SetLocalRows(int64_t, int64_t, int64_t)");
      }
    }
    if (diagnostics_.empty()) return;
    for (const std::function<void()>& take_back : undo) take_back();
    throw PlanError(std::move(diagnostics_));
  }

  Interval RowsOf(size_t m, int64_t total) const {
    const ModuleTree::Signature& signature = s_.plan.tree->parameters(ModuleAt(m));
    const auto weight = std::ranges::find(signature, "weight", &Parameter::name) - signature.begin();
    const Placement placement = Gathered(s_.plan.StepsOf(m).params[static_cast<size_t>(weight)]);
    const std::vector<Interval> rows = LocalIntervals({total}, placement, s_.plan.mesh, s_.mesh.rank()).front();
    return rows.empty() ? Interval{total, 0} : rows.front();
  }

  void Refuse(size_t m, const std::string& what, const std::string& required) {
    Diagnostic d = MakeDiagnostic(Finding::kStyleDoesNotFit, "'" + ModuleAt(m).path + "' " + what,
                                  SourceOf(s_.plan, s_.plan.StepsOf(m)));
    d.path = ModuleAt(m).path;
    d.declared = "style " + s_.plan.StepsOf(m).style + " on " + ModuleAt(m).kind;
    d.required = required;
    diagnostics_.push_back(std::move(d));
  }

  // Every distinct tensor once; all shards are made before the first parameter is changed.
  void CutParameters() {
    std::map<const void*, size_t> number_of;  // addresses tell tensors apart; the order is the tree's
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
        s_.parameters.push_back(
            {path, {}, {m, p}, tensor, parameter.shape, s_.plan.StepsOf(m).params[p], parameter.is_buffer});
        shards.push_back(LocalShard(s_.parameters.back(), s_.plan, s_.mesh, options_.deferred_type));
      }
    }
    for (size_t i = 0; i < shards.size(); ++i) {
      const LiveParameter& parameter = s_.parameters[i];
      const bool deferred = parameter.tensor.is_meta();
      if (shards[i].defined()) nn::Materialize(s_.parameters[i].tensor, shards[i]);
      if (deferred && s_.values && !parameter.is_buffer) s_.values->Add(parameter.path, parameter.tensor);
    }
    std::ranges::sort(s_.parameters, {}, &LiveParameter::path);
  }

  void MakeUnits() {
    if (s_.plan.units.empty()) return;
    auto [units, order, params] =
        moonshard::MakeUnits(s_.plan, s_.parameters, s_.mesh, s_.groups.at(MeshAxis::kDpShard), options_.check,
                             s_.counts, s_.backward_end, s_.gradient_sum);
    s_.units = std::move(units);
    in_units_ = std::move(params);
    for (size_t u = 0; u < s_.units.size(); ++u) {
      const std::string& path = s_.plan.units[u].path;
      std::shared_ptr<Boundary>& boundary = boundaries_[static_cast<size_t>(s_.plan.tree->Find(path))];
      boundary = std::make_shared<UnitBoundary>(
          s_.units[u], boundary, path.empty() ? UnitBoundary::Root{s_.units, order} : UnitBoundary::Root{});
    }
  }

  void SumGradients() {
    for (const LiveParameter& parameter : s_.parameters) {
      if (!in_units_.contains(parameter.ref)) s_.guard->Add(parameter.path, parameter.tensor, parameter.shape);
      if (parameter.is_buffer) continue;
      const bool of_unit = in_units_.contains(parameter.ref);
      for (const GradientTerm& term : TermsOf(parameter.shape, parameter.placement)) {
        const std::shared_ptr<AxisGroup>& group = s_.gradient_groups.at(term.group);
        if (term.dim < 0) {
          s_.gradient_sum->Add(parameter.tensor, group);
        } else {
          s_.gradient_sum->Add(parameter.tensor, group, term.dim, term.begin, term.length);
        }
      }
      if (!of_unit) s_.gradient_sum->Scale(parameter.tensor, MeanScale(s_.plan));
    }
    SumInBuckets(s_.plan, s_.parameters, s_.gradient_groups, *s_.gradient_sum);
  }

  AppliedPlan::State& s_;
  const ApplyOptions& options_;
  Diagnostics diagnostics_;
  std::vector<std::shared_ptr<Boundary>> boundaries_;
  std::set<ParamRef> in_units_;
};

AppliedPlan::AppliedPlan(std::unique_ptr<State> state) : state_(std::move(state)) {}

AppliedPlan::~AppliedPlan() = default;

std::shared_ptr<AppliedPlan> AppliedPlan::Apply(const LiveTree& live, CompiledPlan plan, const DeviceMesh& mesh,
                                                const ApplyOptions& options) {
  Check(plan.mesh == mesh.shape(), "the plan was compiled for another mesh");
  Diagnostics wrong = CheckApplicable(live, plan);
  if (HasErrors(wrong)) throw PlanError(std::move(wrong));
  Agree(mesh, "the compiled plan", plan.CanonicalText());
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
AxisGroup& AppliedPlan::group(MeshAxis axis) const { return *state_->groups.at(axis); }
bool AppliedPlan::has_group(MeshAxis axis) const { return state_->groups.contains(axis); }

void AppliedPlan::SetGradientSync(bool sync) {
  for (const std::shared_ptr<Unit>& unit : state_->units) unit->SetGradientSync(sync);
  state_->gradient_sum->SetSums(sync);
}
const std::vector<std::shared_ptr<Unit>>& AppliedPlan::units() const { return state_->units; }
CollectiveCounts AppliedPlan::counts() const { return *state_->counts; }
void AppliedPlan::ClearCounts() { *state_->counts = {}; }

void AppliedPlan::Observe(std::function<void(const std::string& path, const at::Tensor& output)> observer) {
  *state_->observer = std::move(observer);
}

void AppliedPlan::Watch(CallWatcher* watcher) { *state_->watcher = watcher; }

Diagnostics AppliedPlan::Findings() const { return FindUncalled(state_->plan, state_->live); }

}  // namespace moonshard
