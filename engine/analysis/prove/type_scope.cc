// How a step is proved. The scope joins three sources, each of which knows a part of the step:
//
//   the compiled plan     what parameters are (SetLeaf) and what a module's inputs and outputs are declared to be
//   the applied plan      when a module's call begins, what arrives, what its forward made (CallObserver)
//   the operator scope    every operator in between, forward and backward (operator_checker.h)
//
// A call of a module then goes like this; the parts in brackets are the checker's:
//
//   Entered(module, arguments)     compare with `from` of the declared inputs; the declared layout holds from here on
//   [the region of an input's redistribution: its input is checked, its output is typed as `to`]
//   [the operators of the forward]
//   Made(module, results)          compare with `from` of the declared outputs
//   [the region of an output's redistribution]
//   Exited(module)
//
// Only `from` is compared: `to` is what the redistribution makes, and the region declares it. Each module is so proved
// against its own declaration, as a function with a signature is, and a wrong declaration is found at the boundary
// where it meets the computation and not layers later.
//
// The second half, sizes, is a comparison of two such runs (step_sizes.h). Its faults count only where the layouts
// have none: with a layout fault in the forward most sizes behind it are wrong too, and would bury the cause.
//
// Why one rank suffices. A rule computes with layouts, with the indices of all ranks (index_map.h) and with this rank's
// sizes. A shard that one rank owns is the exception: the owner holds the whole dim, whichever it is, and a wrong dim,
// or values where there should be zeros (types/of_owner.h), show on the others. Where ranks run different operators (an
// expert without tokens) the proof is of the rank that it ran for.
#include "engine/analysis/prove/type_scope.h"

#include <algorithm>
#include <array>
#include <exception>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <typeinfo>
#include <utility>

#include "engine/core/base/text.h"
#include "engine/plan/compile/context_parallel.h"
#include "engine/plan/compile/data_parallel.h"
#include "engine/plan/compile/local_shape.h"
#include "engine/runtime/intercept/operator_scope.h"
#include "engine/runtime/nn/boundary.h"
#include "engine/runtime/nn/conv.h"
#include "engine/runtime/nn/linear.h"
#include "engine/runtime/redistribute/recorded_sequence.h"

namespace moonshard {
namespace {

// Where two axes shard the tokens, a rank knows the elements of the others only if all have as many: the two factors of
// cp, and cp with the tp of sequence parallelism.
void RefuseUneven(const CompiledPlan& plan, int64_t length) {
  if (!plan.context_parallel || length < 0) return;
  const int64_t ranks = plan.mesh.size(MeshAxis::kCp);
  const int64_t inner = plan.mesh.cp_heads();
  const int64_t tp = std::ranges::any_of(plan.layouts, DeclaresSequenceShards) ? plan.mesh.size(MeshAxis::kTp) : 1;
  if (inner == 1 && tp == 1) return;
  int64_t multiple = inner == 1 ? ranks : ranks / inner * std::lcm(int64_t{2}, inner);
  if (tp > 1) multiple = std::lcm(multiple, ranks * std::lcm(tp, int64_t{plan.own_tokens().zigzag ? 2 : 1}));
  if (length > 0 && length % multiple == 0) return;
  Diagnostic d =
      MakeDiagnostic(Finding::kNotSupported,
                     "the layouts of shards of other lengths cannot be checked " +
                         std::string(inner == 1 ? "where cp and tp both shard the tokens" : "on two factors of cp"));
  d.declared = std::to_string(length) + " tokens on " + plan.mesh.ToString();
  d.required = "a multiple of " + std::to_string(multiple) + " tokens";
  throw PlanError({std::move(d)});
}

// A type has one dim on an axis, and between the exchanges of heads a tensor on cp=2x2 is sharded in two: the outer
// factor has the tokens and the inner one the heads. So each factor is an axis of its own.
std::vector<CheckedAxis> AxesOf(const AppliedPlan& applied) {
  std::vector<CheckedAxis> axes;
  const MeshShape& shape = applied.plan().mesh;
  for (MeshAxis axis : kMeshAxes) {
    if (shape.size(axis) == 1) continue;
    const bool zigzag = axis == MeshAxis::kCp && applied.plan().own_tokens().zigzag;
    const int64_t ranks = shape.size(axis);
    const int64_t rank = applied.mesh().coordinate(axis);
    const int64_t inner = axis == MeshAxis::kCp && applied.plan().context_parallel ? shape.cp_heads() : 1;
    if (inner == 1) {
      axes.push_back({axis, ranks, rank, zigzag});
    } else {
      axes.push_back({axis, ranks / inner, rank / inner, zigzag, AxisFactor::kOuter});
      axes.push_back({axis, inner, rank % inner, false, AxisFactor::kInner});
    }
  }
  return axes;
}

// What CompareSizes passes over without saying so each time (step_sizes.h).
constexpr std::array kNoCounterpart = {
    "results that differ between ranks", "operators with a different number of scalar arguments on the mesh",
    "lookups whose rows on other ranks are masked", "constants of more than 64 KiB, and later writes into constants"};

// The operators that a plan declares to be like others.
void AddOperators(const Plan& plan, RuleTable& rules) {
  Diagnostics unknown;
  for (const OperatorLike& one : plan.operators) {
    if (const OperatorRule* rule = rules.Find(one.like)) {
      rules.Add(one.name, OperatorRule(*rule));
      continue;
    }
    Diagnostic d = MakeDiagnostic(Finding::kBadArgument,
                                  "operator_like refers to '" + one.like + "', which has no rule", one.source);
    d.required = "an operator with a rule (engine/analysis/types/rules), such as \"aten::silu\"";
    unknown.push_back(std::move(d));
  }
  if (!unknown.empty()) throw PlanError(std::move(unknown));
}

RuleTable RulesWith(const Plan& plan, const TypeOptions& options) {
  RuleTable rules = RuleTable::BuiltIn();
  for (const auto& [name, rule] : options.rules) rules.Add(name, rule);
  AddOperators(plan, rules);
  return rules;
}

// One for layers that differ in a number alone. The paths are not compared: the first fault's is kept, as the example.
std::vector<TypeFault> FoldedFaults(std::vector<TypeFault> faults) {
  std::vector<TypeFault> out;
  for (TypeFault& fault : faults) {
    const auto known = std::ranges::find_if(out, [&](const TypeFault& other) {
      return other.what == fault.what && other.message == fault.message && other.backward == fault.backward &&
             other.got == fault.got && other.declared == fault.declared;
    });
    if (known != out.end()) {
      ++known->count;
    } else {
      out.push_back(std::move(fault));
    }
  }
  return out;
}

}  // namespace

struct TypeScope::State {
  // A model of the step, whose calls it observes.
  struct Watched final : CallObserver {
    Watched(State& s, const Model& model) : state(s), name(model.name), applied(model.applied) {
      if (HasOwnInputs(applied.plan())) own_inputs.emplace()[MeshAxis::kCp] = applied.plan().own_tokens();
    }
    void Entered(size_t module, std::span<const TensorSlot> arguments) override {
      state.Entered(*this, module, arguments);
    }
    void Made(size_t module, std::span<const TensorSlot> results) override { state.Made(*this, module, results); }
    void Exited(size_t /*module*/) override { state.Exited(); }

    // The path of a module or parameter in the step.
    std::string Named(const std::string& path) const {
      if (name.empty() || path.empty()) return name.empty() ? path : name;
      return name + "." + path;
    }

    State& state;
    std::string name;
    AppliedPlan& applied;
    std::optional<Placement> own_inputs;  // of ids, positions and masks, if each rank of cp calls it with its own
    std::set<size_t> called;
  };

  State(const std::vector<Model>& of, const TypeOptions& options)
      : mesh_of(MeshOf(of)),
        length(mesh_of.plan().context_parallel ? options.length : -1),
        rules(RulesOf(of, options)),
        checker(AxesOf(mesh_of), rules),
        scope(std::in_place, checker) {
    for (const Model& model : of) models.push_back(std::make_unique<Watched>(*this, model));
    for (const auto& model : models) {
      for (const LiveParameter& parameter : model->applied.parameters())
        checker.SetLeaf(parameter.tensor, TypeOfParameter(model->applied, parameter));
      for (const LiveParameter& parameter : model->applied.parameters()) {
        if (parameter.is_buffer || !parameter.tensor.requires_grad())
          checker.SetBuffer(parameter.tensor, model->Named(parameter.path));
      }
    }
    const std::optional<DataParallel>& section = mesh_of.plan().plan->data_parallel;
    if (section && HasDataAxis()) checker.ExpectGradients(section->mean, options.loss_scale);
    // Calls of several models follow each other, so that at most one draws from its own stream.
    if (mesh_of.draws_own_numbers()) {
      const auto draws_own = [this] {
        return std::ranges::any_of(models, [](const auto& model) { return *model->applied.draws_own_numbers(); });
      };
      // Ranks that are threads draw from one generator while others are in a call.
      checker.FollowStream(draws_own, mesh_of.shares_generator() && mesh_of.mesh().recording());
    }
    for (const auto& [group, axis] : options.groups) checker.SetGroup(group, axis);
    std::vector<std::function<void(const CheckedOperator&)>> observers;
    if (options.observer) observers.push_back(options.observer);
    if (options.record != nullptr) {
      observers.push_back(options.record->Recorder({}));
      checker.ObserveHostTensors(options.record->HostTensorRecorder());
    }
    AxisSet compared;
    const StepSizes* one_rank = options.without_cp != nullptr ? options.without_cp : options.unsharded;
    if (one_rank != nullptr) {
      compared_axis = options.without_cp != nullptr ? MeshAxis::kCp : MeshAxis::kTp;
      unsharded = one_rank;
      observers.push_back(own_sizes.Recorder(checker.IndicesOf(compared_axis)));
      checker.ObserveRegions(own_sizes.RegionRecorder());
      checker.CompareMade(compared_axis, one_rank->Made(), one_rank->Summed());
      // The step at cp=1 is itself compared along tp. A data-parallel rank has a batch of its own, whatever tp is.
      for (MeshAxis axis : kMeshAxes) {
        if (axis != MeshAxis::kCp || compared_axis == MeshAxis::kCp) compared.insert(axis);
      }
    }
    if (!observers.empty()) {
      checker.Observe([observers](const CheckedOperator& op) {
        for (const auto& observe : observers) observe(op);
      });
    }
    RefuseUneven(mesh_of.plan(), length);
    if (length >= 0 && mesh_of.mesh().recording()) {
      sequence.emplace(length, mesh_of.plan().own_tokens(), mesh_of.plan().mesh.size(MeshAxis::kCp),
                       mesh_of.mesh().coordinate(MeshAxis::kCp));
    }
    checker.ExpectSizesCompared(compared);
    if (options.believe_knowledge) checker.BelieveKnowledge();
    for (const auto& model : models) model->applied.Watch(*model);
  }

  // The first of the models; the others have its mesh, and reduce gradients over data-parallel ranks as it does.
  static AppliedPlan& MeshOf(const std::vector<Model>& of) {
    Check(!of.empty(), "a TypeScope needs a model");
    AppliedPlan& first = of.front().applied;
    const auto mean = [](const AppliedPlan& applied) {
      const std::optional<DataParallel>& section = applied.plan().plan->data_parallel;
      return section ? std::optional(section->mean) : std::nullopt;
    };
    for (size_t i = 1; i < of.size(); ++i) {
      const AppliedPlan& other = of[i].applied;
      std::string differs;
      if (!(other.plan().mesh == first.plan().mesh) || other.mesh().rank() != first.mesh().rank()) {
        differs = "are on different meshes";
      } else if (other.plan().context_parallel || first.plan().context_parallel) {
        differs = "shard the sequence on cp";
      } else if (mean(other) != mean(first)) {
        differs = "reduce gradients over the data-parallel axes in different ways";
      }
      if (differs.empty()) continue;
      Diagnostic d =
          MakeDiagnostic(Finding::kNotSupported, "the models '" + of.front().name + "' and '" + of[i].name +
                                                     "' of one step cannot be proven together: they " + differs);
      throw PlanError({std::move(d)});
    }
    return first;
  }

  static RuleTable RulesOf(const std::vector<Model>& of, const TypeOptions& options) {
    RuleTable rules = RulesWith(*of.front().applied.plan().plan, options);
    for (size_t i = 1; i < of.size(); ++i) AddOperators(*of[i].applied.plan().plan, rules);
    return rules;
  }

  // Along the data-parallel axes every rank computes with a parameter that is full there, on a batch of its own. That
  // is `shared`, exactly as a tp rank that works on a shard of the tokens: the value is the same, the gradients are
  // terms. Thus the sum over dp needs no rule of its own. Where fsdp shards the parameter, its shards are no layout
  // that a forward meets: the type is that of the gathered parameter. A weight of experts that ep distributes is the
  // rank's own, as the rows that it receives are.
  TensorType TypeOfParameter(const AppliedPlan& applied, const LiveParameter& parameter) const {
    TensorType type;
    for (const CheckedAxis& axis : checker.axes()) {
      if (axis.axis == MeshAxis::kEp && parameter.placement[axis.axis].is_shard()) {
        type.push_back(AxisType::Of(TypeKind::kRouted));
        continue;
      }
      if (IsDataAxis(axis.axis)) {
        type.push_back(AxisType::Shared());
        continue;
      }
      const std::vector<int64_t>& full = parameter.shape;
      // As it is while it is used: fsdp has gathered it, and the rank has other tokens than the other ranks of cp.
      Placement gathered = Gathered(parameter.placement);
      // An expert of another rank of ep has no element here. Its layout is the one that it has on its rank.
      const int64_t owner = gathered[MeshAxis::kEp].owner;
      const bool elsewhere = owner >= 0 && owner != applied.mesh().coordinate(MeshAxis::kEp);
      if (elsewhere) gathered[MeshAxis::kEp] = Layout::Replicate();
      const bool of_unit = gathered[axis.axis] != parameter.placement[axis.axis];
      const Layout layout = of_unit ? Layout::Shared() : LayoutAlong(gathered[axis.axis], axis.factor);
      const std::vector<int64_t> local = LocalShape(full, gathered, applied.plan().mesh, applied.mesh().rank());
      int64_t size = -1;
      if (layout.is_shard()) size = full[static_cast<size_t>(layout.dim)];
      // A rank without elements of the factors of an adapter computes with them in other shapes (nn/low_rank.h).
      const bool factor = layout.owner >= 0 && applied.plan().LayoutsOf(parameter.ref.module).factors;
      type.push_back(factor ? AxisType::OfOwner(layout.owner)
                            : TypeOfLayout(layout, local, size, axis.ranks, axis.rank));
      if (type.back().is_shard() && elsewhere) {
        type.back().length = 0;
        for (int64_t& part : type.back().parts) part = 0;
      }
    }
    return type;
  }

  // A batch is the same on every rank of tp and cp and a shard of its first dim on data-parallel ranks; a tensor
  // without dims has no batch, and is a constant there too. `declared`: the layouts that a module's input has in the
  // plan, which may have its tokens in shards on cp; null: none.
  TensorType TypeOfInput(const at::Tensor& tensor, const Placement* declared = nullptr) const {
    TensorType type;
    for (const CheckedAxis& axis : checker.axes()) {
      const bool batch = IsDataAxis(axis.axis) && tensor.dim() > 0;
      const bool own_tokens = axis.axis == MeshAxis::kCp && declared != nullptr && (*declared)[axis.axis].is_shard();
      const Layout layout = batch        ? Layout::Shard(0)
                            : own_tokens ? LayoutAlong((*declared)[axis.axis], axis.factor)
                                         : Layout::Replicate();
      const bool sequence = own_tokens && layout.dim == 1 && axis.factor == AxisFactor::kBoth;
      type.push_back(TypeOfLayout(layout, tensor.sizes(), sequence ? length : -1, axis.ranks, axis.rank));
    }
    return type;
  }

  bool HasDataAxis() const {
    return std::ranges::any_of(checker.axes(), [](const CheckedAxis& axis) { return IsDataAxis(axis.axis); });
  }

  // A step of data-parallel ranks whose rows are not known, or whose loss is not, is no proof of what they add up.
  void AddDataRanks(UnprovenOperators& unproven) const {
    if (!HasDataAxis() || !mesh_of.plan().plan->data_parallel) return;
    const auto note = [&](const char* what) { ++unproven[what].count; };
    if (!rows_known) {
      note(
          "no input of the step is known to hold rows of the batch: declare the tensors of the batch "
          "(TypeScope::Input) before operators use them");
    }
    if (!loss_checked && checker.backward_operators() > 0) {
      note(
          "the loss is not declared (TypeScope::Loss), so that it is not known whether its gradients are reduced over "
          "the data-parallel ranks as it requires");
    }
  }

  // Not by a scope on another mesh, which has seen the same input before.
  bool IsTyped(const at::Tensor& tensor) const {
    const TensorType* type = TypeOf(tensor);
    return type != nullptr && type->size() == checker.axes().size();
  }

  // Inputs of the model are typed where the outermost planned call receives them, unless they have a type already
  // (Input, or an earlier call of this scope). One that requires a gradient and is no leaf was made by operators that
  // the scope saw or should have seen, so it is not an input, and nothing is assumed of it.
  void Entered(Watched& model, size_t module, std::span<const TensorSlot> arguments) {
    const CompiledPlan& plan = model.applied.plan();
    const bool outermost = depth == 0;
    if (outermost) checker.BeginCall();
    ++depth;
    checker.path().Enter(model.Named(plan.tree->modules()[module].path));
    model.called.insert(module);
    const ModuleLayouts& layouts = plan.LayoutsOf(module);
    for (const TensorSlot& slot : arguments) {
      if (!slot.tensor->defined()) continue;
      const bool planned = slot.position < layouts.inputs.size() && layouts.inputs[slot.position];
      if (outermost && !IsTyped(*slot.tensor) && (!slot.tensor->requires_grad() || slot.tensor->is_leaf())) {
        const Placement* declared = planned ? &layouts.inputs[slot.position]->from : nullptr;
        if (!planned && model.own_inputs && slot.tensor->dim() == 2) declared = &*model.own_inputs;
        SetType(*slot.tensor, TypeOfInput(*slot.tensor, declared));
        NoteInput(*slot.tensor);
      }
      const std::string what = "input " + std::to_string(slot.position);
      if (outermost) checker.CheckModelInput(*slot.tensor, what);
      if (!planned) continue;
      Anchor(*slot.tensor, *layouts.inputs[slot.position], layouts.in_features, what);
    }
  }

  void Made(const Watched& model, size_t module, std::span<const TensorSlot> results) {
    const ModuleLayouts& layouts = model.applied.plan().LayoutsOf(module);
    for (const TensorSlot& slot : results) {
      if (!slot.tensor->defined() || slot.position >= layouts.outputs.size() || !layouts.outputs[slot.position])
        continue;
      const std::string what = "output " + std::to_string(slot.position);
      Anchor(*slot.tensor, *layouts.outputs[slot.position], layouts.out_features, what);
    }
  }

  void Exited() {
    if (std::uncaught_exceptions() > 0 && !stopped_in) stopped_in = checker.path().Here().path;
    checker.path().Leave();
    --depth;
    if (depth == 0) checker.EndCall();
  }

  // An axis other than tp only where the plan speaks of it: a placement that names tp alone has replicate on the others
  // by default, which would contradict a batch that is sharded there. The full size is known for the last dim alone,
  // from the weights; it places the heads of a shard and the parts of a fused one. Of a dim that two axes shard, the
  // size that one of them shards is not that of the weights.
  void Anchor(const at::Tensor& tensor, const Redistribution& declared, int64_t features, const std::string& what) {
    for (const CheckedAxis& axis : checker.axes()) {
      if (axis.factor == AxisFactor::kInner) continue;  // anchored with the outer one
      const Layout& layout = declared.from[axis.axis];
      if (axis.axis != MeshAxis::kTp && layout == Layout::Replicate()) continue;
      const bool sized = layout.is_shard() && layout.dim == -1 && !IsNested(declared.from, axis.axis);
      checker.Anchor(tensor, axis.axis, layout, sized ? features : -1, what, IsIdle(declared, axis.axis));
    }
  }

  // Whether a boundary does nothing along `axis`, so that nothing follows from what it declares there. What moves
  // shards along other axes reads the dim of a shard, as two axes may shard one.
  bool IsIdle(const Redistribution& declared, MeshAxis axis) const {
    if (declared.from[axis] != declared.to[axis]) return false;
    return !declared.from[axis].is_shard() || std::ranges::all_of(checker.axes(), [&](const CheckedAxis& other) {
      const Layout& from = declared.from[other.axis];
      const Layout& to = declared.to[other.axis];
      return from == to || (!from.is_shard() && !to.is_shard());
    });
  }

  // Whether another axis shards the last dim, which `axis` shards.
  bool IsNested(const Placement& placement, MeshAxis axis) const {
    return std::ranges::any_of(checker.axes(), [&](const CheckedAxis& other) {
      return other.axis != axis && placement[other.axis].is_shard() && placement[other.axis].dim == -1;
    });
  }

  // After the backward every gradient sum has run, so .grad must have the parameter's own layout: a shard for a shard,
  // the same everywhere for replicate and for shared, whose terms were summed. Not on dp: gradients over it may rightly
  // be terms, where the host reduces them itself; on ep too where no section sums them, apart from those of experts.
  void CheckGradients(const Watched& model) {
    const CompiledPlan& plan = model.applied.plan();
    for (const LiveParameter& parameter : model.applied.parameters()) {
      if (parameter.is_buffer || !parameter.tensor.grad().defined()) continue;
      const at::Tensor& gradient = parameter.tensor.grad();
      const TensorType type = TypeOfParameter(model.applied, parameter);
      for (size_t a = 0; a < checker.axes().size(); ++a) {
        const CheckedAxis& axis = checker.axes()[a];
        const bool of_expert = type[a].is(TypeKind::kRouted);
        const bool on_ep = axis.axis == MeshAxis::kEp && plan.exchanges_tokens();
        const bool checked = axis.axis == MeshAxis::kTp || (axis.axis == MeshAxis::kCp && plan.context_parallel) ||
                             (on_ep && (of_expert || plan.plan->data_parallel));
        if (!checked || gradient.sizes() != parameter.tensor.sizes()) continue;
        const Layout& layout = parameter.placement[axis.axis];
        const bool of_unit = axis.axis == MeshAxis::kCp && layout.is_shard();
        const AxisType expected = of_unit ? TypeOfLayout(layout, gradient.sizes(), -1, axis.ranks, axis.rank) : type[a];
        checker.CheckGradient(model.Named(plan.tree->PathOf(parameter.ref)), gradient, a, expected, layout.ToText());
      }
    }
  }

  // The axes along which a step has other sizes than with one rank on the axis.
  AxisSet SizedAxes() const {
    const CompiledPlan& plan = mesh_of.plan();
    AxisSet out;
    if (plan.context_parallel) out.insert(MeshAxis::kCp);
    if (plan.mesh.size(MeshAxis::kTp) > 1) out.insert(MeshAxis::kTp);
    return out;
  }

  // With one rank there is nothing to compare: the sizes are those of the unsharded step. A step that stopped has
  // recorded a part of its operators, and its missing ones would be reported as differences.
  void CompareWithUnsharded(Proof& proof) const {
    const AxisSet axes = SizedAxes();
    proof.sizes_compared = axes.empty();
    const bool stopped = std::ranges::count(proof.faults, TypeFault::Kind::kThrew, &TypeFault::kind) > 0;
    if (unsharded == nullptr || unsharded->empty() || stopped || axes.empty()) return;
    SizeDifferences differences = CompareSizes(own_sizes, *unsharded, compared_axis);
    // What follows in a backward from operators that could not be checked may have any layout. With one element a rank
    // LibTorch itself takes other ways (einsum leaves out dims of size 1).
    const bool one_element = std::ranges::any_of(
        proof.unproven, [](const auto& one) { return one.first.find("shards of one element") != std::string::npos; });
    const auto unreliable = std::ranges::stable_partition(differences.faults, [&](const TypeFault& fault) {
      return !one_element && (proof.unproven.empty() || !fault.backward);
    });
    for (const TypeFault& fault : unreliable) {
      differences.others.push_back("the sizes in " + std::string(fault.backward ? "the backward of " : "") +
                                   ModuleName(fault.path) + ": " + fault.what + " returns " + fault.got + ", and " +
                                   fault.declared + " with one rank, but other operators could not be checked");
    }
    differences.faults.erase(unreliable.begin(), unreliable.end());
    // What types refuse has wrong sizes too.
    if (proof.faults.empty()) proof.faults = FoldedFaults(std::move(differences.faults));
    proof.sizes_not_compared = std::move(differences.others);
    const bool all = compared_axis == MeshAxis::kCp || !axes.contains(MeshAxis::kCp);
    proof.sizes_compared = all && proof.sizes_not_compared.empty();
    const auto assume = [&proof](Assumption::Kind kind, int64_t count, std::vector<std::string> of = {}) {
      if (count > 0) proof.assumptions.push_back({kind, count, std::move(of)});
    };
    assume(Assumption::Kind::kNumbers, static_cast<int64_t>(kNoCounterpart.size()),
           {kNoCounterpart.begin(), kNoCounterpart.end()});
    assume(Assumption::Kind::kValueSizes, differences.by_value);
    assume(Assumption::Kind::kSlices, differences.outside);
    const auto backwards = static_cast<int64_t>(differences.backwards.size());
    assume(Assumption::Kind::kBackwards, backwards, std::move(differences.backwards));
  }

  // A parameter that is left out of the forward and added to its result is right where the forward adds it last and
  // along the dim that the boundary takes. It is left out at tp=1 as well, where sizes are taken from, so that no step
  // shows what else the forward does with it: a router may choose by what its bias makes. This project's classes are
  // known, and these two of exported programs, whose graphs are checked for it (graph/local_sizes.h). A class of the
  // host's is not, whatever its name is.
  static void AddLeftOut(const Watched& model, UnprovenOperators& unproven) {
    constexpr std::array kProducts = {"Linear", "Conv1D"};
    const CompiledPlan& plan = model.applied.plan();
    std::set<size_t> known;
    for (const LiveParameter& parameter : model.applied.parameters()) {
      const torch::nn::Module& module = model.applied.ModuleOf(parameter);
      const std::type_info& type = typeid(module);
      const auto* hook = dynamic_cast<const Hookable*>(&module);
      const bool exported = hook != nullptr && std::ranges::find(kProducts, hook->Kind()) != kProducts.end();
      if (exported || type == typeid(nn::Linear::Impl) || type == typeid(nn::Conv1d::Impl) ||
          type == typeid(nn::Conv2d::Impl) || type == typeid(nn::Conv3d::Impl)) {
        known.insert(parameter.ref.module);
      }
    }
    for (size_t m = 0; m < plan.layouts_of.size() && plan.mesh.size(MeshAxis::kTp) > 1; ++m) {
      const std::string& kind = plan.tree->modules()[m].kind;
      if (plan.LayoutsOf(m).after.empty() || known.contains(m)) continue;
      Unproven& entry =
          unproven["a parameter of a '" + kind +
                   "' is added after the forward, and the forward may also use the parameter in another way"];
      if (entry.count++ == 0) entry.first = model.Named(plan.tree->modules()[m].path);
    }
  }

  // Whether a parameter or a boundary has an owner on tp.
  bool HasOwners() const {
    const auto owned = [](const Placement& placement) { return placement[MeshAxis::kTp].owner >= 0; };
    const auto moves = [&](const std::optional<Redistribution>& one) {
      return one && (owned(one->from) || owned(one->to));
    };
    const auto owns = [&](const ModuleLayouts& layouts) {
      return std::ranges::any_of(layouts.params, owned) || std::ranges::any_of(layouts.inputs, moves) ||
             std::ranges::any_of(layouts.outputs, moves);
    };
    return std::ranges::any_of(
        models, [&](const auto& model) { return std::ranges::any_of(model->applied.plan().layouts, owns); });
  }

  // What the proof rests on without having checked it.
  std::vector<Assumption> Assumptions() const {
    std::vector<Assumption> out;
    const auto add = [&out](Assumption::Kind kind, std::vector<std::string> of) {
      const auto count = static_cast<int64_t>(of.size());
      if (count > 0) out.push_back({kind, count, std::move(of)});
    };
    if (checker.assumed() > 0) out.push_back({Assumption::Kind::kConstants, checker.assumed(), {}});
    add(Assumption::Kind::kRegions, {checker.trusted().begin(), checker.trusted().end()});
    std::vector<std::string> others;
    for (const CheckedAxis& axis : checker.axes()) {
      if (axis.axis != MeshAxis::kTp && !SizedAxes().contains(axis.axis)) {
        others.emplace_back(moonshard::ToString(axis.axis));
      }
    }
    add(Assumption::Kind::kAxes, std::move(others));
    std::vector<std::string> exchanging;
    for (const auto& model : models) {
      const CompiledPlan& plan = model->applied.plan();
      for (size_t m = 0; m < plan.layouts_of.size() && plan.exchanges_tokens(); ++m) {
        if (plan.LayoutsOf(m).exchange) exchanging.push_back(model->Named(plan.tree->modules()[m].path));
      }
    }
    add(Assumption::Kind::kExperts, std::move(exchanging));
    add(Assumption::Kind::kOwnRows, {checker.own_steps().begin(), checker.own_steps().end()});
    if (checker.drew()) out.push_back({Assumption::Kind::kRandom, 0, {}});
    if (checker.relied_on_loss_scale()) out.push_back({Assumption::Kind::kLossScale, 0, {}});
    out.push_back({Assumption::Kind::kMemory, 0, {}});
    return out;
  }

  void NoteInput(const at::Tensor& tensor) {
    if (tensor.dim() > 0) {
      rows_known = true;
      checker.NoteRows(tensor.size(0));
    }
    inputs.push_back(std::string(c10::toString(tensor.scalar_type())) + " " + ShapeToString(tensor.sizes().vec()));
  }

  void Close() {
    sequence.reset();
    if (!scope) return;
    scope.reset();
    for (const auto& model : models) model->applied.Unwatch(*model);
  }

  int64_t CalledModules() const {
    int64_t out = 0;
    for (const auto& model : models) out += static_cast<int64_t>(model->called.size());
    return out;
  }

  std::vector<std::unique_ptr<Watched>> models;
  AppliedPlan& mesh_of;                      // the first model's
  int64_t length = -1;                       // TypeOptions::length, of a plan that shards the sequence
  std::optional<RecordedSequence> sequence;  // of a mesh without peers
  RuleTable rules;
  OperatorChecker checker;
  std::optional<OperatorScope> scope;
  const StepSizes* unsharded = nullptr;
  MeshAxis compared_axis = MeshAxis::kTp;  // on which the step of `unsharded` has one rank
  StepSizes own_sizes;                     // of this step, with the types along that axis
  std::optional<std::string> stopped_in;   // the module that an exception left first
  std::vector<std::string> inputs;         // ProofScope::inputs
  int depth = 0;
  bool loss_checked = false;
  bool rows_known = false;  // an input has rows of the batch
};

TypeScope::TypeScope(AppliedPlan& applied, const TypeOptions& options)
    : TypeScope(std::vector<Model>{{"", applied}}, options) {}

TypeScope::TypeScope(const std::vector<Model>& models, const TypeOptions& options)
    : state_(std::make_unique<State>(models, options)) {}

// Finish closes first and checks then: gradients are read by the checker and by no operator, and what the host runs
// after the step must not be recorded as a part of it. A scope that an exception leaves closes here, without a proof.
TypeScope::~TypeScope() { state_->Close(); }

void TypeScope::Input(const at::Tensor& tensor) {
  SetType(tensor, state_->TypeOfInput(tensor));
  state_->NoteInput(tensor);
}

void TypeScope::Loss(const at::Tensor& loss) {
  state_->checker.CheckLoss(loss);
  state_->loss_checked = true;
}

void TypeScope::Stopped(const std::string& what) { state_->checker.Stopped(state_->stopped_in.value_or(""), what); }

Proof TypeScope::Finish() {
  state_->Close();
  for (const auto& model : state_->models) state_->CheckGradients(*model);
  state_->checker.CheckBuffers();
  const OperatorChecker& checker = state_->checker;
  Proof proof{checker.faults(), checker.unproven(), checker.operators(), checker.assumed()};
  for (const auto& model : state_->models) State::AddLeftOut(*model, proof.unproven);
  state_->AddDataRanks(proof.unproven);
  proof.untrue = checker.untrue();
  proof.loss_checked = state_->loss_checked;
  proof.has_owners = checker.has_owners() || state_->HasOwners();
  proof.assumptions = state_->Assumptions();
  proof.scope = {state_->mesh_of.plan().mesh,
                 {state_->mesh_of.mesh().rank()},
                 state_->inputs,
                 state_->CalledModules(),
                 checker.backward_operators() > 0};
  state_->CompareWithUnsharded(proof);
  return proof;
}

namespace {

// The mesh with one rank on `axis`, and the number of `rank` on it.
std::pair<MeshShape, int64_t> WithOneRank(const MeshShape& shape, int64_t rank, MeshAxis axis) {
  std::vector<std::pair<std::string, int64_t>> axes;
  int64_t place = 0;
  for (MeshAxis other : kMeshAxes) {
    if (other == axis) continue;
    axes.emplace_back(ToString(other), shape.size(other));
    place = place * shape.size(other) + shape.Coordinate(rank, other);
  }
  return {MeshShape::Make(axes).ValueOrThrow(), place};
}

// Some faults may be declarations that nothing follows from. What is left of the others without them decides.
Proof ProveAt(const MeshShape& shape, const StepOfMesh& run, TypeOptions options, int64_t rank, c10::Device device) {
  options.believe_knowledge = false;
  Proof proof = run(DeviceMesh::Recording(shape, rank, device), options);
  if (!proof.loss_checked || !std::ranges::any_of(proof.faults, &TypeFault::idle)) return proof;
  options.believe_knowledge = true;
  Proof other = run(DeviceMesh::Recording(shape, rank, device), options);
  return other.faults.empty() && other.loss_checked ? other : proof;
}

// Owners make every rank's step another one: what a rank holds is computed there alone.
Proof ProveAtOwners(const std::function<Proof(int64_t rank)>& prove, int64_t rank, int64_t tp) {
  Proof proof = prove(rank);
  if (!proof.has_owners || !proof.faults.empty()) return proof;
  for (int64_t i = 1; i < tp; ++i) {
    Proof other = prove(rank / tp * tp + (rank % tp + i) % tp);
    if (!other.faults.empty() || (proof.holds() && !other.holds())) return other;
    proof.scope.ranks.push_back(other.scope.ranks.front());
  }
  return proof;
}

// The unsharded run comes first, so that the run on the mesh can be compared when it finishes, and its faults count
// only where it stopped: a step that cannot run at tp=1 is broken without any plan. The observer is called in one of
// the two runs, since it is about the sharded step. The other axes stay as they are, so that what they do to a step is
// the same in both runs.
Proof ProveOverTp(const MeshShape& shape, const StepOfMesh& run, TypeOptions options, int64_t rank,
                  c10::Device device) {
  const int64_t tp = shape.size(MeshAxis::kTp);
  if (tp == 1) return run(DeviceMesh::Recording(shape, rank, device), options);
  StepSizes unsharded;
  TypeOptions alone = options;
  alone.record = &unsharded;
  alone.observer = {};
  const auto [without, place] = WithOneRank(shape, rank, MeshAxis::kTp);
  Proof first = run(DeviceMesh::Recording(without, place, device, /*as_if_tp=*/true), alone);
  if (std::ranges::count(first.faults, TypeFault::Kind::kThrew, &TypeFault::kind) > 0) return first;
  options.unsharded = &unsharded;
  return ProveAtOwners([&](int64_t at) { return ProveAt(shape, run, options, at, device); }, rank, tp);
}

// What two proofs rest on, of which one begins with the other. The same operators and tensors may be in both, so that
// their numbers are not added.
void AddAssumptions(const Proof& from, Proof& proof) {
  for (const auto& [why, operators] : from.unproven) {
    Unproven& all = proof.unproven.try_emplace(why, operators).first->second;
    all.count = std::max(all.count, operators.count);
  }
  for (const Assumption& assumption : from.assumptions) {
    const auto same = std::ranges::find(proof.assumptions, assumption.kind, &Assumption::kind);
    if (same == proof.assumptions.end()) {
      proof.assumptions.push_back(assumption);
      continue;
    }
    std::set<std::string> of(same->of.begin(), same->of.end());
    of.insert(assumption.of.begin(), assumption.of.end());
    same->of.assign(of.begin(), of.end());
    same->count = of.empty() ? std::max(same->count, assumption.count) : static_cast<int64_t>(of.size());
  }
  std::ranges::sort(proof.assumptions, {}, &Assumption::kind);
}

}  // namespace

// The step at cp=1 is proven first, against the step of one rank; the step on the mesh is then compared with the step
// at cp=1 that has the same coordinate on tp. Not with a step at tp=1 besides: tp shards the features first, so that
// the ranks of cp have other heads there.
Proof ProveAtTwoSizes(const MeshShape& shape, const StepOfMesh& run, TypeOptions options, int64_t rank,
                      c10::Device device) {
  if (shape.size(MeshAxis::kCp) == 1) return ProveOverTp(shape, run, std::move(options), rank, device);
  TypeOptions alone = options;
  alone.observer = {};
  const auto [without, place] = WithOneRank(shape, rank, MeshAxis::kCp);
  Proof first = ProveOverTp(without, run, alone, place, device);
  if (!first.faults.empty()) return first;
  const auto prove = [&](int64_t at) {
    StepSizes sizes;
    alone.record = &sizes;
    const auto [mesh, alike] = WithOneRank(shape, at, MeshAxis::kCp);
    run(DeviceMesh::Recording(mesh, alike, device), alone);
    TypeOptions compared = options;
    compared.without_cp = &sizes;
    return ProveAt(shape, run, compared, at, device);
  };
  Proof proof = ProveAtOwners(prove, rank, shape.size(MeshAxis::kTp));
  AddAssumptions(first, proof);
  proof.sizes_compared = proof.sizes_compared && first.sizes_compared;
  for (const std::string& other : first.sizes_not_compared) {
    if (std::ranges::find(proof.sizes_not_compared, other) == proof.sizes_not_compared.end()) {
      proof.sizes_not_compared.push_back(other);
    }
  }
  return proof;
}

}  // namespace moonshard
