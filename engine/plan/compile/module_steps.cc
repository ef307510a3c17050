// The last pass: what happens around the calls of every module, as a list of steps that apply turns into objects
// without a decision of its own. With all decisions here, `explain` prints what will run, costs are counted from the
// same lists (cost.cc), and ranks compare them before the first collective: two ranks with equal steps issue equal
// collectives.
//
// A layer on tp=2 under sequence parallelism, and the steps of its q_proj, whose input q, k and v share:
//
//   enter   outermost call; redistribute input 0: shard(1) -> shared (one collective for 3 siblings)
//   leave   draw after: own; finish call
//
// Every step is there because a module's layouts, its place in the tree or a section of the plan asks for it; together
// these are its StepsKey, and equal keys have equal steps. A model of 60,000 modules (a large mixture of experts)
// has some dozens of keys, so the work for a module is to find its key and not to make its steps.
#include "engine/plan/compile/module_steps.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "engine/core/base/check.h"
#include "engine/plan/compile/compiled_plan.h"
#include "engine/plan/compile/context_parallel.h"
#include "engine/plan/compile/cost.h"
#include "engine/plan/compile/data_parallel.h"
#include "engine/plan/compile/gradient_sums.h"
#include "engine/plan/compile/local_shape.h"
#include "engine/plan/compile/precision.h"
#include "engine/plan/compile/siblings.h"

namespace moonshard {
namespace {

// Classes of engine/runtime/nn whose forward draws no random numbers: their calls need no other stream.
bool DrawsNothing(std::string_view kind) {
  constexpr std::array<std::string_view, 4> kKinds = {"Linear", "Embedding", "LayerNorm", "RMSNorm"};
  return std::ranges::find(kKinds, kind) != kKinds.end();
}

// Dropout on shards must not repeat the neighbour's pattern; on what ranks hold alike it must be the same.
DrawFrom StreamOf(const Layout& layout) { return layout.is_shard() ? DrawFrom::kOwn : DrawFrom::kCommon; }

// Everything that the steps of a module depend on.
struct StepsKey {
  // Of the n-th input that is redistributed: how many modules share it, and the number of the name of the one that runs
  // it.
  struct Shared {
    int32_t uses = 1;
    int32_t with = -1;  // itself
    bool operator==(const Shared&) const = default;
  };
  enum class OfUnit : uint8_t { kNone, kReshard, kKeep };

  bool root = false;
  bool intercepted = true;  // the calls can be
  bool encloses = false;    // modules whose calls a rule needs
  bool shares = false;      // modules that redistribute
  bool keeps_results = false;
  bool draws = true;
  bool drops = false;           // the input of an adapter
  bool needs_gradient = false;  // of the results, although the parameters are frozen
  OfUnit unit = OfUnit::kNone;
  int32_t recompute = -1;  // section
  int32_t cast = -1;       // index into plan.kept_dtypes, of this very module
  std::string_view dtype;  // in which its parameters are used
  Shared shared;           // of the first input
  std::vector<Shared> more;
  bool operator==(const StepsKey&) const = default;
};

// The first pass finds siblings that redistribute alike (siblings.h); the second gives every module its key and takes
// the steps with that key, or makes it. Both touch a module for some tens of nanoseconds.
class ProgramCompiler {
 public:
  explicit ProgramCompiler(CompiledPlan& plan)
      : plan_(plan),
        modules_(plan.tree->modules()),
        tp_(plan.mesh.size(MeshAxis::kTp) > 1),
        siblings_(plan),
        everywhere_(SumsOverRanks(plan) || !HasHookableRoot(plan)),
        changes_dtype_(ChangesDType(plan)) {}

  void Run() {
    plan_.steps.clear();
    plan_.sums_gradients = SumsOverRanks(plan_);
    MarkSections();
    known_.assign(plan_.layouts.size(), {});
    brief_.assign(plan_.layouts.size(), {});
    name_of_class_.assign(plan_.tree->class_representatives().size(), -1);
    plan_.steps_of.resize(modules_.size());
    for (uint32_t m = 0; m < modules_.size(); ++m) plan_.steps_of[m] = StepsFor(m);
    MakeGroups();
    plan_.sharded_dims = ShardedDims();
    plan_.buckets = GradientBucketsOf(plan_);
    plan_.gradient_scale = 1;
    if (SumsOverData(plan_) && plan_.plan->data_parallel->mean) {
      plan_.gradient_scale = 1.0 / static_cast<double>(plan_.mesh.data_ranks());
    }
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  static bool HasHookableRoot(const CompiledPlan& plan) {
    const int64_t root = plan.tree->Find("");
    return root < 0 || plan.tree->modules()[static_cast<size_t>(root)].hookable;
  }

  // What sections name is marked on single modules. Paths without a module (a tree from headers) are passed over: the
  // live tree has them, and is compiled again.
  void MarkSections() {
    const auto of = [&](const std::string& path, auto&& mark) {
      if (const int64_t m = plan_.tree->Find(path); m >= 0) mark(sections_[static_cast<uint32_t>(m)]);
    };
    for (const ShardedUnit& unit : plan_.units) {
      of(unit.path,
         [&](StepsKey& key) { key.unit = unit.reshard ? StepsKey::OfUnit::kReshard : StepsKey::OfUnit::kKeep; });
    }
    for (size_t i = 0; i < plan_.recomputed.size(); ++i) {
      of(plan_.recomputed[i], [&](StepsKey& key) { key.recompute = plan_.recompute_section[i]; });
    }
    for (const std::string& path : plan_.kept_results) {
      of(path, [](StepsKey& key) { key.keeps_results = true; });
    }
    for (const auto& [path, section] : plan_.adapted) {
      const int64_t m = plan_.tree->Find(path);
      const bool drops = plan_.plan->adapters[static_cast<size_t>(section)].dropout > 0 &&
                         !(m >= 0 && LooksUp(static_cast<uint32_t>(m)));  // ids are not dropped
      of(path, [&](StepsKey& key) { key.drops = key.drops || drops; });
    }
    for (uint32_t m = 0; m < modules_.size() && !plan_.adapted.empty(); ++m) {
      if (LooksUp(m)) sections_[m].needs_gradient = true;
    }
    for (size_t i = 0; i < plan_.kept_dtypes.size(); ++i) {
      of(plan_.kept_dtypes[i].path, [&](StepsKey& key) { key.cast = static_cast<int32_t>(i); });
    }
  }

  bool LooksUp(uint32_t m) const { return plan_.LayoutsOf(m).looks_up; }

  StepsKey KeyOf(uint32_t m) {
    StepsKey key;
    if (!sections_.empty()) {
      if (const auto found = sections_.find(m); found != sections_.end()) key = found->second;
    }
    key.root = modules_[m].path.empty();
    key.intercepted = modules_[m].hookable;
    key.encloses = siblings_.encloses(m);
    key.shares = siblings_.shares(m);
    key.draws = tp_ && (key.drops || !DrawsNothing(modules_[m].kind));
    if (changes_dtype_) key.dtype = ComputeDTypeOf(plan_, modules_[m].path);
    if (const Siblings::Group* group = siblings_.Of(m, 0)) key.shared = SharedOf(*group, m);
    if (siblings_.has_more()) {
      for (size_t n = 1; const Siblings::Group* group = siblings_.Of(m, n); ++n)
        key.more.push_back(SharedOf(*group, m));
    }
    return key;
  }

  StepsKey::Shared SharedOf(const Siblings::Group& group, uint32_t m) {
    if (group.first == m) return {group.uses, -1};
    return {group.uses, NumberOfName(group.first)};
  }
  std::string_view NameOf(uint32_t m) const {
    const std::string_view path = modules_[m].path;
    const std::string_view parent = ParentOf(path);
    return parent.empty() ? path : path.substr(parent.size() + 1);
  }
  // Modules of one path class have one name, unless it is a number.
  int32_t NumberOfName(uint32_t m) {
    int32_t& of_class = name_of_class_[modules_[m].path_class];
    if (of_class >= 0) return of_class;
    const std::string_view name = NameOf(m);
    const auto [entry, fresh] = number_of_name_.try_emplace(name, static_cast<int32_t>(names_.size()));
    if (fresh) names_.push_back(name);
    const bool is_number = std::ranges::all_of(name, [](char c) { return c >= '0' && c <= '9'; });
    if (!is_number) of_class = entry->second;
    return entry->second;
  }

  // Where no section of the plan names single modules, a key is the layouts (of one rule, kind and signature) and what
  // fits one number: that distinguishes most of 60,000 modules.
  uint32_t StepsFor(uint32_t m) {
    if (!sections_.empty() || changes_dtype_ || siblings_.has_more()) return ProgramOfKey(m);
    uint64_t brief =
        (modules_[m].path.empty() ? 1U : 0U) | (siblings_.encloses(m) ? 2U : 0U) | (siblings_.shares(m) ? 4U : 0U);
    if (const Siblings::Group* group = siblings_.Of(m, 0)) {
      const StepsKey::Shared shared = SharedOf(*group, m);
      brief |= static_cast<uint64_t>(shared.uses) << 3 | static_cast<uint64_t>(shared.with + 1) << 35;
    }
    std::vector<std::pair<uint64_t, uint32_t>>& known = brief_[plan_.layouts_of[m]];
    for (const auto& [key, steps] : known) {
      if (key == brief) return steps;
    }
    known.emplace_back(brief, ProgramOfKey(m));
    return known.back().second;
  }

  // Equal keys give equal steps, so steps are made once for each key; keys that differ in something without effect are
  // joined by comparing the steps themselves. ModuleSteps are numbered in the order of the tree.
  uint32_t ProgramOfKey(uint32_t m) {
    StepsKey key = KeyOf(m);
    std::vector<Known>& known = known_[plan_.layouts_of[m]];
    for (const Known& k : known) {
      if (k.key == key) return k.steps;
    }
    // Different keys may give the same steps: whether a module draws numbers counts only under tp.
    ModuleSteps steps = Make(plan_.layouts_of[m], key);
    uint32_t number = kNone;
    for (const Known& k : known) {
      if (plan_.steps[k.steps] == steps) number = k.steps;
    }
    if (number == kNone) {
      number = static_cast<uint32_t>(plan_.steps.size());
      plan_.steps.push_back(std::move(steps));
    }
    known.push_back({std::move(key), number});
    return number;
  }

  static ModuleStep Step(StepKind kind) {
    ModuleStep step;
    step.kind = kind;
    return step;
  }
  static ModuleStep Cast(StepKind kind, std::string_view dtype) {
    ModuleStep step = Step(kind);
    step.dtype = dtype;
    return step;
  }
  static ModuleStep Draw(StepKind kind, DrawFrom stream) {
    ModuleStep step = Step(kind);
    step.stream = stream;
    return step;
  }
  ModuleStep Redistribute(StepKind kind, size_t position, MeshAxis axis, const StepsKey::Shared& shared) const {
    ModuleStep step = Step(kind);
    step.position = static_cast<int32_t>(position);
    step.axis = axis;
    step.uses = shared.uses;
    if (shared.with >= 0) step.shared_with = names_[static_cast<size_t>(shared.with)];
    return step;
  }

  ModuleSteps Make(uint32_t layouts_index, const StepsKey& key) const {
    const ModuleLayouts& layouts = plan_.layouts[layouts_index];
    ModuleSteps out;
    out.layouts = layouts_index;
    out.dtype = key.dtype;
    out.planned = key.encloses || !layouts.style.empty() || key.root;
    out.local_rows = tp_ && layouts.lookup == Lookup::kMasked;
    out.reports_full_shapes = IsSurroundedByFull(layouts);
    AddSums(layouts, out);
    if (!key.intercepted) return out;
    AddOfCalls(layouts, key, out);
    AddOfSections(key, out);
    // The order of steps: StepKind's. Of two casts of the root that of `precision`, which was added first in front of
    // the forward and last behind it, is the outer one.
    std::ranges::stable_sort(out.enter, {}, &ModuleStep::kind);
    std::ranges::stable_sort(out.leave, {}, &ModuleStep::kind);
    Pair(out);
    return out;
  }

  static bool IsSurroundedByFull(const ModuleLayouts& layouts) {
    if (layouts.lookup == Lookup::kMasked) return true;
    if (layouts.outputs.empty() || !layouts.outputs.front()) return false;
    const Layout& made = layouts.outputs.front()->from[MeshAxis::kTp];
    return made.is_shard() && ShardsFeatures(made) && !layouts.outputs.front()->to[MeshAxis::kTp].is_shard();
  }

  // What the module's own layouts and its place in the tree ask for.
  void AddOfCalls(const ModuleLayouts& layouts, const StepsKey& key, ModuleSteps& out) const {
    std::optional<DrawFrom> inside;
    if (key.draws) inside = key.drops ? StreamOfInput(layouts) : StreamInside(layouts);
    const std::optional<DrawFrom> after = tp_ ? StreamAfter(layouts) : std::nullopt;
    if (inside) out.enter.push_back(Draw(StepKind::kDrawInside, *inside));
    if (inside || after) out.leave.push_back(Draw(StepKind::kDrawAfter, after.value_or(DrawFrom::kAsBefore)));
    size_t moving = 0;
    for (size_t i = 0; i < layouts.inputs.size(); ++i) {
      const std::vector<MeshAxis> axes = MovingAxes(layouts.inputs[i], plan_.mesh);
      if (axes.empty()) continue;
      Check(axes.size() == 1, "an input changes its layout on several axes");
      const StepsKey::Shared& shared = moving == 0 ? key.shared : key.more[moving - 1];
      out.enter.push_back(Redistribute(StepKind::kRedistributeInput, i, axes.front(), shared));
      ++moving;
    }
    for (size_t i = 0; i < layouts.outputs.size(); ++i) {
      for (MeshAxis axis : MovingAxes(layouts.outputs[i], plan_.mesh)) {
        out.leave.push_back(Redistribute(StepKind::kRedistributeOutput, i, axis, {}));
      }
    }
    if (!layouts.after.empty()) {
      out.leave.push_back(Step(StepKind::kAddParameters));
      const std::optional<Redistribution> first = layouts.outputs.empty() ? std::nullopt : layouts.outputs[0];
      out.leave.back().in_forward = MovingAxes(first, plan_.mesh).empty();
      out.leave.back().moves_on_tp = first && first->from[MeshAxis::kTp] != first->to[MeshAxis::kTp];
    }
    if (layouts.route && tp_) {
      if (layouts.route->inputs) {
        out.enter.push_back(Step(StepKind::kRouteInputs));
      } else {
        out.leave.push_back(Step(StepKind::kRouteOutputs));
      }
    }
    if (layouts.exchange && plan_.mesh.size(MeshAxis::kEp) > 1) {
      out.enter.push_back(Step(StepKind::kSendTokens));
      out.leave.push_back(Step(StepKind::kReturnTokens));
    }
    if (layouts.ring && plan_.mesh.size(MeshAxis::kCp) > 1) out.enter.push_back(Step(StepKind::kRingAttention));
    if (key.shares) out.enter.push_back(Step(StepKind::kShareResults));
    if (key.needs_gradient) out.leave.push_back(Step(StepKind::kNeedGradient));
    // The root's calls are intercepted always: a step begins there, and missing values are found there.
    if (out.empty() && !key.root && !(everywhere_ && out.planned)) return;
    out.enter.push_back(Step(StepKind::kOutermostCall));
    out.leave.push_back(Step(StepKind::kFinishCall));
    if (plan_.context_parallel) out.compared.push_back(ComparedOn(MeshAxis::kCp, layouts));
    if (tp_) out.compared.push_back(ComparedOn(MeshAxis::kTp, layouts));
  }

  // An input that is declared to arrive as a shard has a size of each rank's own in that dim; one that arrives
  // replicated is equal in all dims, and in its values. A rule that names no layout on cp leaves that axis as it is, so
  // that on cp only an input that the rule redistributes is known to be replicated.
  static InputComparison ComparedOn(MeshAxis axis, const ModuleLayouts& layouts) {
    InputComparison out{axis, {}};
    for (const std::optional<Redistribution>& input : layouts.inputs) {
      ArrivingInput& arriving = out.arriving.emplace_back();
      if (!input) continue;
      const Layout& from = input->from[axis];
      arriving.replicated = from == Layout::Replicate() && (axis == MeshAxis::kTp || input->to[axis] != from);
      if (from.is_shard()) arriving.shard_dim = from.dim;
    }
    return out;
  }

  // What sections of the plan ask for: recompute, precision and keep_dtype, fsdp.
  void AddOfSections(const StepsKey& key, ModuleSteps& out) const {
    if (key.keeps_results) out.enter.push_back(Step(StepKind::kKeepResults));
    if (key.recompute >= 0) {
      const Recomputed& section = plan_.plan->recompute[static_cast<size_t>(key.recompute)];
      out.enter.push_back(Step(StepKind::kRecompute));
      out.enter.back().position = key.recompute;
      if (section.selective()) out.enter.back().kept = KeptOperators{section.keeps_attention, section.keeps_matmuls};
    }
    const Precision section = key.root ? plan_.plan->precision.value_or(Precision{}) : Precision{};
    if (section.cast_inputs && !section.parameters.empty()) {
      out.enter.push_back(Cast(StepKind::kCastArguments, section.parameters));
    }
    if (key.cast >= 0) {
      out.enter.push_back(Cast(StepKind::kCastArguments, plan_.kept_dtypes[static_cast<size_t>(key.cast)].dtype));
      out.leave.push_back(Cast(StepKind::kCastResults, ""));
    }
    if (!section.outputs.empty()) out.leave.push_back(Cast(StepKind::kCastResults, section.outputs));
    if (key.unit == StepsKey::OfUnit::kNone) return;
    out.enter.push_back(Step(StepKind::kGatherUnit));
    out.leave.push_back(Step(StepKind::kReshardUnit));
    out.leave.back().keeps = key.unit == StepsKey::OfUnit::kKeep;
    if (!key.root) return;
    out.enter.push_back(Step(StepKind::kBeginStep));
    out.leave.push_back(Step(StepKind::kEndStep));
  }

  // Which step of `enter` one of `leave` ends. Of two casts the inner one, of the module itself, is undone, to the
  // dtype that arrived; that of the model is not.
  static void Pair(ModuleSteps& out) {
    for (ModuleStep& leaving : out.leave) {
      for (size_t i = 0; i < out.enter.size(); ++i) {
        if (Ends(leaving, out.enter[i])) leaving.ends = static_cast<int32_t>(i);
      }
    }
  }
  static bool Ends(const ModuleStep& leaving, const ModuleStep& entered) {
    return InfoOf(leaving.kind).ends == entered.kind &&
           (leaving.kind != StepKind::kCastResults || leaving.dtype.empty());
  }

  // A module's own operators work on what goes into it: on a rank's own numbers where a parameter of it is in shards
  // over tp, or its first input is. Nothing where the plan has nothing on its inputs: then they are those of the
  // caller.
  static std::optional<DrawFrom> StreamInside(const ModuleLayouts& layouts) {
    if (std::ranges::any_of(layouts.params, [](const Placement& p) { return p[MeshAxis::kTp].is_shard(); })) {
      return DrawFrom::kOwn;
    }
    return StreamOfInput(layouts);
  }
  static std::optional<DrawFrom> StreamOfInput(const ModuleLayouts& layouts) {
    if (layouts.inputs.empty() || !layouts.inputs.front()) return std::nullopt;
    return StreamOf(layouts.inputs.front()->to[MeshAxis::kTp]);
  }
  // Operators between two calls work on what left the last one, as dropout on attention weights does between the
  // projections of queries, keys and values and that of the output.
  static std::optional<DrawFrom> StreamAfter(const ModuleLayouts& layouts) {
    if (layouts.outputs.empty() || !layouts.outputs.front()) return std::nullopt;
    return StreamOf(layouts.outputs.front()->to[MeshAxis::kTp]);
  }

  // Groups are those of rank 0: every rank has terms of the same groups.
  void AddSums(const ModuleLayouts& layouts, ModuleSteps& out) const {
    const ModuleTree::Signature& signature = plan_.tree->signatures()[layouts.signature];
    for (uint32_t p = 0; p < layouts.params.size(); ++p) {
      if (!plan_.Trains(layouts, signature[p])) continue;
      int32_t number = 0;
      for (const GradientTerm& term : GradientTermsOf(signature[p].shape, layouts.params[p], plan_.mesh, 0)) {
        out.sums.push_back({p, term.group, term.dim, number++});
      }
    }
  }

  std::set<int64_t> ShardedDims() const {
    std::set<int64_t> dims;
    for (const ModuleLayouts& layouts : plan_.layouts) {
      for (const auto* redistributions : {&layouts.inputs, &layouts.outputs}) {
        for (const std::optional<Redistribution>& move : *redistributions) {
          if (!move) continue;
          for (const Placement* placement : {&move->from, &move->to}) {
            for (const Layout& layout : placement->by_axis) {
              if (layout.is_shard() && layout.dim >= 0) dims.insert(layout.dim);
            }
          }
        }
      }
    }
    return dims;
  }

  // Making a group is collective, so their order is fixed: full axes from the outermost in, then sub-groups of them,
  // both from ordered sets and hence independent of the order of the tree. A group that only some ranks made, or made
  // in another order, waits for the others without end. Whether a group is needed follows from the steps of all
  // modules, not from those that this rank's shards touch. Units that only change dtypes gather from one rank,
  // themselves.
  void MakeGroups() {
    std::set<MeshAxis> axes = {MeshAxis::kTp};
    std::set<PlannedGroup> parts;
    const auto add = [&](const PlannedGroup& group) {
      if (group.axes.single() && group.ranks == plan_.mesh.size(group.axes)) {
        axes.insert(group.axes.axes().front());
      } else {
        parts.insert(group);
      }
    };
    for (const ModuleSteps& steps : plan_.steps) {
      for (const auto* list : {&steps.enter, &steps.leave}) {
        for (const ModuleStep& step : *list) {
          const bool moves = step.kind == StepKind::kRedistributeInput || step.kind == StepKind::kRedistributeOutput;
          if (moves) {
            const ModuleLayouts& layouts = plan_.layouts[steps.layouts];
            const auto& side = step.kind == StepKind::kRedistributeInput ? layouts.inputs : layouts.outputs;
            add(GroupOf(*side[static_cast<size_t>(step.position)], step.axis, plan_.mesh));
          }
          if (step.kind == StepKind::kSendTokens) axes.insert(MeshAxis::kEp);
          if (step.kind == StepKind::kRingAttention) axes.insert(MeshAxis::kCp);
        }
      }
      for (const PlannedSum& sum : steps.sums) add(sum.group);
      for (const Placement& placement : plan_.layouts[steps.layouts].params) {
        for (MeshAxis axis : kMeshAxes) {
          if (placement[axis].is_shard() && plan_.mesh.size(axis) > 1) axes.insert(axis);
        }
      }
    }
    for (MeshAxis axis : kDataAxes) {
      if (plan_.plan->data_parallel && plan_.mesh.size(axis) > 1) axes.insert(axis);
    }
    const UnitSettings& settings = plan_.unit_settings;
    if (!plan_.units.empty()) add({settings.axes, settings.ranks});
    for (const ShardedUnit& unit : plan_.units) {
      if (unit.reshard_ranks > 0) add({settings.axes, unit.reshard_ranks});
    }
    plan_.groups.clear();
    for (MeshAxis axis : axes) plan_.groups.push_back({axis, plan_.mesh.size(axis)});
    plan_.groups.insert(plan_.groups.end(), parts.begin(), parts.end());
  }

  struct Known {
    StepsKey key;
    uint32_t steps;
  };

  CompiledPlan& plan_;
  const std::vector<Module>& modules_;
  const bool tp_;
  const Siblings siblings_;
  const bool everywhere_;  // a planned module that the host calls by itself has duties of an outermost call
  const bool changes_dtype_;
  std::unordered_map<uint32_t, StepsKey> sections_;  // what sections of the plan make of modules
  std::vector<std::string_view> names_;
  std::unordered_map<std::string_view, int32_t> number_of_name_;
  std::vector<int32_t> name_of_class_;                             // -1: not known, or a number
  std::vector<std::vector<Known>> known_;                          // by layouts
  std::vector<std::vector<std::pair<uint64_t, uint32_t>>> brief_;  // by layouts
};

}  // namespace

void CompileSteps(CompiledPlan& plan) { ProgramCompiler(plan).Run(); }

std::string ToText(const PlannedGroup& group, const MeshShape& mesh) {
  std::string out = ToString(group.axes);
  if (group.ranks != mesh.size(group.axes)) out += " in groups of " + std::to_string(group.ranks);
  return out;
}

}  // namespace moonshard
