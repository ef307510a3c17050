// The last pass: what happens around the calls of every module, as a list of steps that apply turns into objects
// without a decision of its own. With all decisions here, `explain` prints what will run, costs are counted from the
// same lists (cost.cc), and ranks compare them before the first collective: two ranks with equal programs issue equal
// collectives.
//
// A layer on tp=2 under sequence parallelism, and the program of its q_proj, whose input q, k and v share:
//
//   enter   outermost call; redistribute input 0: shard(1) -> shared (one collective for 3 siblings)
//   leave   draw after: own; finish call
//
// Every step is there because a module's steps, its place in the tree or a section of the plan asks for it; together
// these are its ProgramKey, and equal keys have equal programs. A model of 60,000 modules (a large mixture of experts)
// has some dozens of keys, so the work for a module is to find its key and not to make its program.
#include "engine/plan/compile/program.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "engine/core/base/check.h"
#include "engine/plan/compile/compiled_plan.h"
#include "engine/plan/compile/cost.h"
#include "engine/plan/compile/data_parallel.h"
#include "engine/plan/compile/gradient_sums.h"
#include "engine/plan/compile/local_shape.h"
#include "engine/plan/compile/precision.h"

namespace moonshard {
namespace {

constexpr std::array<const char*, kStepKindCount> kStepNames = {
    "begin_step",     "gather_unit",        "cast_arguments", "recompute",     "keep_results", "outermost_call",
    "draw_inside",    "redistribute_input", "route_inputs",   "share_results", "draw_after",   "redistribute_output",
    "add_parameters", "route_outputs",      "finish_call",    "cast_results",  "reshard_unit", "end_step"};

// Classes of engine/runtime/nn whose forward draws no random numbers: their calls need no other stream.
bool DrawsNothing(std::string_view kind) {
  constexpr std::array<std::string_view, 4> kKinds = {"Linear", "Embedding", "LayerNorm", "RMSNorm"};
  return std::ranges::find(kKinds, kind) != kKinds.end();
}

// Dropout on shards must not repeat the neighbour's pattern; on what ranks hold alike it must be the same.
DrawFrom StreamOf(const Layout& layout) { return layout.is_shard() ? DrawFrom::kOwn : DrawFrom::kCommon; }

// Everything that the program of a module depends on.
struct ProgramKey {
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
  OfUnit unit = OfUnit::kNone;
  int32_t recompute = -1;  // section
  int32_t cast = -1;       // index into plan.kept_dtypes, of this very module
  std::string_view dtype;  // in which its parameters are used
  Shared shared;           // of the first input
  std::vector<Shared> more;
  bool operator==(const ProgramKey&) const = default;
};

// The first pass finds parents and counts, for each module, which of its children redistribute alike; the second gives
// every module its key and takes the program with that key, or makes it. Both touch a module for some tens of
// nanoseconds.
class ProgramCompiler {
 public:
  explicit ProgramCompiler(CompiledPlan& plan)
      : plan_(plan),
        modules_(plan.tree->modules()),
        tp_(plan.mesh.size(MeshAxis::kTp) > 1),
        everywhere_(tp_ || SumsOverData(plan) || !HasHookableRoot(plan)),
        changes_dtype_(ChangesDType(plan)) {}

  void Run() {
    plan_.programs.clear();
    plan_.sums_gradients = tp_ || SumsOverData(plan_);
    FindMoving();
    FindParents();
    ShareRedistributions();
    MarkSections();
    known_.assign(plan_.steps.size(), {});
    brief_.assign(plan_.steps.size(), {});
    name_of_class_.assign(plan_.tree->class_representatives().size(), -1);
    plan_.program_of.resize(modules_.size());
    for (uint32_t m = 0; m < modules_.size(); ++m) plan_.program_of[m] = ProgramFor(m);
    MakeGroups();
    plan_.buckets = GradientBucketsOf(plan_);
    plan_.gradient_scale = 1;
    if (SumsOverData(plan_) && plan_.plan->data_parallel->mean) {
      plan_.gradient_scale =
          1.0 / static_cast<double>(plan_.mesh.size(MeshAxis::kDpShard) * plan_.mesh.size(MeshAxis::kDpReplicate));
    }
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  static bool HasHookableRoot(const CompiledPlan& plan) {
    const int64_t root = plan.tree->Find("");
    return root < 0 || plan.tree->modules()[static_cast<size_t>(root)].hookable;
  }

  struct Group {
    uint32_t redistribution;
    int32_t position;
    uint32_t first;  // module
    int32_t uses;
    uint32_t next;  // of the same parent
  };

  // An input that is redistributed with communication.
  struct Moving {
    int32_t position = 0;
    uint32_t redistribution = 0;  // equal ones have one number
  };

  // Redistributions get a number for each text, so that the comparison of siblings is one of integers. Only those with
  // communication count: a change that takes no collective, or on an axis of size 1, is nothing to share.
  void FindMoving() {
    std::unordered_map<std::string, uint32_t> numbers;
    moving_.resize(plan_.steps.size());
    for (const ModuleSteps& steps : plan_.steps) {
      const auto moves = [&](const std::optional<Redistribution>& move) {
        return MovingAxis(move, plan_.mesh).has_value();
      };
      needs_calls_.push_back(steps.needs_calls());
      moves_.push_back(std::ranges::any_of(steps.inputs, moves) || std::ranges::any_of(steps.outputs, moves));
    }
    for (size_t s = 0; s < plan_.steps.size(); ++s) {
      const ModuleSteps& steps = plan_.steps[s];
      for (size_t i = 0; i < steps.inputs.size(); ++i) {
        if (!MovingAxis(steps.inputs[i], plan_.mesh)) continue;
        const std::string text = steps.inputs[i]->from.ToText() + " -> " + steps.inputs[i]->to.ToText();
        const auto number = numbers.try_emplace(text, static_cast<uint32_t>(numbers.size())).first->second;
        moving_[s].push_back({static_cast<int32_t>(i), number});
      }
    }
  }

  // Trees list a module before what it holds, so the parent is among the ancestors of the module before: the walk up
  // from there costs as many steps as the path has components that closed, O(1) a module on average. A tree from
  // checkpoint headers lacks modules without parameters; there children of one missing parent share a number beyond
  // those of the modules.
  void FindParents() {
    parent_.assign(modules_.size(), kNone);
    std::unordered_map<std::string_view, uint32_t> missing;
    for (uint32_t m = 0; m < modules_.size(); ++m) {
      const std::string& path = modules_[m].path;
      if (path.empty()) continue;
      uint32_t candidate = m == 0 ? kNone : m - 1;
      while (candidate < modules_.size() && !IsInside(path, modules_[candidate].path)) candidate = parent_[candidate];
      if (candidate >= modules_.size() || NameWithin(m, candidate).find('.') != std::string_view::npos) {
        const std::string_view of = ParentOf(path);
        const int64_t found = plan_.tree->Find(of);
        candidate =
            found >= 0 ? static_cast<uint32_t>(found)
                       : missing.try_emplace(of, static_cast<uint32_t>(modules_.size() + missing.size())).first->second;
      }
      parent_[m] = candidate;
    }
    parents_ = modules_.size() + missing.size() + 1;
  }

  static bool IsInside(const std::string& path, const std::string& ancestor) {
    if (ancestor.empty()) return true;
    return path.size() > ancestor.size() && path[ancestor.size()] == '.' && path.starts_with(ancestor);
  }
  std::string_view NameWithin(uint32_t m, uint32_t ancestor) const {
    const size_t skip = modules_[ancestor].path.empty() ? 0 : modules_[ancestor].path.size() + 1;
    return std::string_view(modules_[m].path).substr(skip);
  }

  // Modules of one parent with the same redistribution of the same argument are called with one tensor (queries,
  // keys, values; gate and up): they form a group, whose first member in the tree runs the collective. Found by walking
  // the few groups of each parent. Whatever encloses a module that is redistributed keeps the shared results during a
  // call.
  void ShareRedistributions() {
    std::vector<uint32_t> first_of_parent(parents_, kNone);
    shares_.assign(modules_.size(), false);
    encloses_.assign(modules_.size(), false);
    group_.assign(modules_.size(), kNone);
    groups_.reserve(modules_.size());
    for (uint32_t m = 0; m < modules_.size(); ++m) {
      const uint32_t parent = parent_[m] == kNone ? static_cast<uint32_t>(parents_ - 1) : parent_[m];
      const std::vector<Moving>& moving = moving_[plan_.steps_of[m]];
      for (size_t i = 0; i < moving.size(); ++i) {
        const uint32_t group = GroupOf(first_of_parent[parent], moving[i], m);
        ++groups_[group].uses;
        if (i == 0) {
          group_[m] = group;
        } else {
          more_groups_[m].push_back(group);
        }
      }
      if (needs_calls_[plan_.steps_of[m]]) MarkAncestors(m, encloses_);
      if (moves_[plan_.steps_of[m]]) MarkAncestors(m, shares_);
    }
  }

  uint32_t GroupOf(uint32_t& first_of_parent, const Moving& moving, uint32_t module) {
    for (uint32_t g = first_of_parent; g != kNone; g = groups_[g].next) {
      if (groups_[g].redistribution == moving.redistribution && groups_[g].position == moving.position) return g;
    }
    groups_.push_back({moving.redistribution, moving.position, module, 0, first_of_parent});
    first_of_parent = static_cast<uint32_t>(groups_.size()) - 1;
    return first_of_parent;
  }

  // Stops at the first ancestor that is marked, whose ancestors are marked too. So all calls together touch each module
  // once, and not once for each module below it.
  void MarkAncestors(uint32_t module, std::vector<bool>& marked) {
    for (uint32_t m = module; parent_[m] != kNone;) {
      if (parent_[m] >= modules_.size()) return MarkFromHeaders(modules_[m].path, marked);
      m = parent_[m];
      if (marked[m]) return;
      marked[m] = true;
    }
  }
  void MarkFromHeaders(std::string_view path, std::vector<bool>& marked) {
    while (!path.empty()) {
      path = ParentOf(path);
      if (const int64_t m = plan_.tree->Find(path); m >= 0) marked[static_cast<size_t>(m)] = true;
    }
  }

  // What sections name is marked on single modules. Paths without a module (a tree from headers) are passed over: the
  // live tree has them, and is compiled again.
  void MarkSections() {
    const auto of = [&](const std::string& path, auto&& mark) {
      if (const int64_t m = plan_.tree->Find(path); m >= 0) mark(sections_[static_cast<uint32_t>(m)]);
    };
    for (const ShardedUnit& unit : plan_.units) {
      of(unit.path,
         [&](ProgramKey& key) { key.unit = unit.reshard ? ProgramKey::OfUnit::kReshard : ProgramKey::OfUnit::kKeep; });
    }
    for (size_t i = 0; i < plan_.recomputed.size(); ++i) {
      of(plan_.recomputed[i], [&](ProgramKey& key) { key.recompute = plan_.recompute_section[i]; });
    }
    for (const std::string& path : plan_.kept_results) {
      of(path, [](ProgramKey& key) { key.keeps_results = true; });
    }
    for (size_t i = 0; i < plan_.kept_dtypes.size(); ++i) {
      of(plan_.kept_dtypes[i].path, [&](ProgramKey& key) { key.cast = static_cast<int32_t>(i); });
    }
  }

  ProgramKey KeyOf(uint32_t m) {
    ProgramKey key;
    if (!sections_.empty()) {
      if (const auto found = sections_.find(m); found != sections_.end()) key = found->second;
    }
    key.root = modules_[m].path.empty();
    key.intercepted = modules_[m].hookable;
    key.encloses = encloses_[m];
    key.shares = shares_[m];
    key.draws = tp_ && !DrawsNothing(modules_[m].kind);
    if (changes_dtype_) key.dtype = ComputeDTypeOf(plan_, modules_[m].path);
    if (group_[m] != kNone) key.shared = SharedOf(groups_[group_[m]], m);
    if (!more_groups_.empty()) {
      if (const auto more = more_groups_.find(m); more != more_groups_.end()) {
        for (uint32_t group : more->second) key.more.push_back(SharedOf(groups_[group], m));
      }
    }
    return key;
  }

  ProgramKey::Shared SharedOf(const Group& group, uint32_t m) {
    if (group.first == m) return {group.uses, -1};
    return {group.uses, NumberOfName(group.first)};
  }
  std::string_view NameOf(uint32_t m) const {
    if (parent_[m] < modules_.size()) return NameWithin(m, parent_[m]);
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

  // Where no section of the plan names single modules, a key is the steps (of one rule, kind and signature) and what
  // fits one number: that distinguishes most of 60,000 modules.
  uint32_t ProgramFor(uint32_t m) {
    if (!sections_.empty() || changes_dtype_ || !more_groups_.empty()) return ProgramOfKey(m);
    uint64_t brief = (modules_[m].path.empty() ? 1U : 0U) | (encloses_[m] ? 2U : 0U) | (shares_[m] ? 4U : 0U);
    if (group_[m] != kNone) {
      const ProgramKey::Shared shared = SharedOf(groups_[group_[m]], m);
      brief |= static_cast<uint64_t>(shared.uses) << 3 | static_cast<uint64_t>(shared.with + 1) << 35;
    }
    std::vector<std::pair<uint64_t, uint32_t>>& known = brief_[plan_.steps_of[m]];
    for (const auto& [key, program] : known) {
      if (key == brief) return program;
    }
    known.emplace_back(brief, ProgramOfKey(m));
    return known.back().second;
  }

  // Equal keys give equal programs, so a program is made once a key; keys that differ in something without effect are
  // joined by comparing the programs themselves. Programs are numbered in the order of the tree.
  uint32_t ProgramOfKey(uint32_t m) {
    ProgramKey key = KeyOf(m);
    std::vector<Known>& known = known_[plan_.steps_of[m]];
    for (const Known& k : known) {
      if (k.key == key) return k.program;
    }
    // Different keys may give the same program: whether a module draws numbers counts only under tp.
    ModuleProgram program = Make(plan_.steps_of[m], key);
    uint32_t number = kNone;
    for (const Known& k : known) {
      if (plan_.programs[k.program] == program) number = k.program;
    }
    if (number == kNone) {
      number = static_cast<uint32_t>(plan_.programs.size());
      plan_.programs.push_back(std::move(program));
    }
    known.push_back({std::move(key), number});
    return number;
  }

  static ProgramStep Step(StepKind kind) {
    ProgramStep step;
    step.kind = kind;
    return step;
  }
  static ProgramStep Cast(StepKind kind, std::string_view dtype) {
    ProgramStep step = Step(kind);
    step.dtype = dtype;
    return step;
  }
  static ProgramStep Draw(StepKind kind, DrawFrom stream) {
    ProgramStep step = Step(kind);
    step.stream = stream;
    return step;
  }
  ProgramStep Redistribute(StepKind kind, size_t position, MeshAxis axis, const ProgramKey::Shared& shared) const {
    ProgramStep step = Step(kind);
    step.position = static_cast<int32_t>(position);
    step.axis = axis;
    step.uses = shared.uses;
    if (shared.with >= 0) step.shared_with = names_[static_cast<size_t>(shared.with)];
    return step;
  }

  // The order of steps: StepKind's.
  ModuleProgram Make(uint32_t steps_index, const ProgramKey& key) const {
    const ModuleSteps& steps = plan_.steps[steps_index];
    ModuleProgram out;
    out.steps = steps_index;
    out.dtype = key.dtype;
    out.planned = key.encloses || !steps.style.empty() || key.root;
    AddSums(steps, out);
    if (!key.intercepted) return out;
    AddInside(steps, key, out);
    AddAround(key, out);
    return out;
  }

  // From the outermost call's duties to the forward, and back.
  void AddInside(const ModuleSteps& steps, const ProgramKey& key, ModuleProgram& out) const {
    const std::optional<DrawFrom> inside = key.draws ? StreamInside(steps) : std::nullopt;
    const std::optional<DrawFrom> after = tp_ ? StreamAfter(steps) : std::nullopt;
    if (inside) out.enter.push_back(Draw(StepKind::kDrawInside, *inside));
    if (inside || after) out.leave.push_back(Draw(StepKind::kDrawAfter, after.value_or(DrawFrom::kAsBefore)));
    size_t moving = 0;
    for (size_t i = 0; i < steps.inputs.size(); ++i) {
      const std::optional<MeshAxis> axis = MovingAxis(steps.inputs[i], plan_.mesh);
      if (!axis) continue;
      const ProgramKey::Shared& shared = moving == 0 ? key.shared : key.more[moving - 1];
      out.enter.push_back(Redistribute(StepKind::kRedistributeInput, i, *axis, shared));
      ++moving;
    }
    for (size_t i = 0; i < steps.outputs.size(); ++i) {
      const std::optional<MeshAxis> axis = MovingAxis(steps.outputs[i], plan_.mesh);
      if (axis) out.leave.push_back(Redistribute(StepKind::kRedistributeOutput, i, *axis, {}));
    }
    if (!steps.after.empty()) out.leave.push_back(Step(StepKind::kAddParameters));
    if (steps.route && tp_) {
      if (steps.route->inputs) {
        out.enter.push_back(Step(StepKind::kRouteInputs));
      } else {
        out.leave.push_back(Step(StepKind::kRouteOutputs));
      }
    }
    if (key.shares) out.enter.push_back(Step(StepKind::kShareResults));
    // The root's calls are intercepted always: a step begins there, and missing values are found there.
    if (out.empty() && !key.root && !(everywhere_ && out.planned)) return;
    out.enter.insert(out.enter.begin(), Step(StepKind::kOutermostCall));
    out.leave.push_back(Step(StepKind::kFinishCall));
  }

  // The steps outside of that, the innermost first: it is put before what there is, and behind it. The order has
  // reasons:
  //   cast outside of recompute     the saved input is the cast one, and both runs compute in the same dtype
  //   unit outside of the cast      parameters are full before anything of the call runs, until its results are made
  //   unit outside of recompute     the second run happens inside the backward of the unit, where it is full again
  void AddAround(const ProgramKey& key, ModuleProgram& out) const {
    const auto begins = [&](ProgramStep step) { out.enter.insert(out.enter.begin(), std::move(step)); };
    if (key.keeps_results) begins(Step(StepKind::kKeepResults));
    if (key.recompute >= 0) {
      begins(Step(StepKind::kRecompute));
      out.enter.front().position = key.recompute;
    }
    if (key.cast >= 0) {
      begins(Cast(StepKind::kCastArguments, plan_.kept_dtypes[static_cast<size_t>(key.cast)].dtype));
      out.leave.push_back(Cast(StepKind::kCastResults, ""));
    }
    if (key.root && plan_.plan->precision) {
      const Precision& section = *plan_.plan->precision;
      if (section.cast_inputs && !section.parameters.empty()) {
        begins(Cast(StepKind::kCastArguments, section.parameters));
      }
      if (!section.outputs.empty()) out.leave.push_back(Cast(StepKind::kCastResults, section.outputs));
    }
    if (key.unit == ProgramKey::OfUnit::kNone) return;
    begins(Step(StepKind::kGatherUnit));
    out.leave.push_back(Step(StepKind::kReshardUnit));
    out.leave.back().keeps = key.unit == ProgramKey::OfUnit::kKeep;
    if (!key.root) return;
    begins(Step(StepKind::kBeginStep));
    out.leave.push_back(Step(StepKind::kEndStep));
  }

  // A module's own operators work on what goes into it: on a rank's own numbers where a parameter of it is in shards
  // over tp, or its first input is. Nothing where the plan has nothing on its inputs: then they are those of the
  // caller.
  static std::optional<DrawFrom> StreamInside(const ModuleSteps& steps) {
    if (std::ranges::any_of(steps.params, [](const Placement& p) { return p[MeshAxis::kTp].is_shard(); })) {
      return DrawFrom::kOwn;
    }
    if (steps.inputs.empty() || !steps.inputs.front()) return std::nullopt;
    return StreamOf(steps.inputs.front()->to[MeshAxis::kTp]);
  }
  // Operators between two calls work on what left the last one, as dropout on attention weights does between the
  // projections of queries, keys and values and that of the output.
  static std::optional<DrawFrom> StreamAfter(const ModuleSteps& steps) {
    if (steps.outputs.empty() || !steps.outputs.front()) return std::nullopt;
    return StreamOf(steps.outputs.front()->to[MeshAxis::kTp]);
  }

  // Groups are those of rank 0: every rank has terms of the same groups.
  void AddSums(const ModuleSteps& steps, ModuleProgram& out) const {
    const ModuleTree::Signature& signature = plan_.tree->signatures()[steps.signature];
    for (uint32_t p = 0; p < steps.params.size(); ++p) {
      if (signature[p].is_buffer) continue;
      for (const GradientTerm& term : GradientTermsOf(signature[p].shape, steps.params[p], plan_.mesh, 0)) {
        out.sums.push_back({p, term.group, term.dim});
      }
    }
  }

  // Making a group is collective, so their order is fixed: full axes from the outermost in, then sub-groups of them,
  // both from ordered sets and hence independent of the order of the tree. A group that only some ranks made, or made
  // in another order, waits for the others without end. Whether a group is needed follows from the programs of all
  // modules, not from those that this rank's shards touch. Units that only change dtypes gather from one rank,
  // themselves.
  void MakeGroups() {
    std::set<MeshAxis> axes = {MeshAxis::kTp};
    std::set<PlannedGroup> parts;
    const auto add = [&](const PlannedGroup& group) {
      if (group.ranks == plan_.mesh.size(group.axis)) {
        axes.insert(group.axis);
      } else {
        parts.insert(group);
      }
    };
    for (const ModuleProgram& program : plan_.programs) {
      for (const auto* list : {&program.enter, &program.leave}) {
        for (const ProgramStep& step : *list) {
          const bool moves = step.kind == StepKind::kRedistributeInput || step.kind == StepKind::kRedistributeOutput;
          if (moves) axes.insert(step.axis);
        }
      }
      for (const PlannedSum& sum : program.sums) add(sum.group);
      for (const Placement& placement : plan_.steps[program.steps].params) {
        for (MeshAxis axis : kMeshAxes) {
          if (placement[axis].is_shard() && plan_.mesh.size(axis) > 1) axes.insert(axis);
        }
      }
    }
    for (MeshAxis axis : {MeshAxis::kDpReplicate, MeshAxis::kDpShard}) {
      if (plan_.plan->data_parallel && plan_.mesh.size(axis) > 1) axes.insert(axis);
    }
    if (!plan_.units.empty()) add({MeshAxis::kDpShard, UnitRanks(plan_)});
    for (const ShardedUnit& unit : plan_.units) {
      if (unit.reshard_ranks > 0) add({MeshAxis::kDpShard, unit.reshard_ranks});
    }
    plan_.groups.clear();
    for (MeshAxis axis : axes) plan_.groups.push_back({axis, plan_.mesh.size(axis)});
    plan_.groups.insert(plan_.groups.end(), parts.begin(), parts.end());
  }

  struct Known {
    ProgramKey key;
    uint32_t program;
  };

  CompiledPlan& plan_;
  const std::vector<Module>& modules_;
  const bool tp_;
  const bool everywhere_;  // a planned module that the host calls by itself has duties of an outermost call
  const bool changes_dtype_;
  std::vector<std::vector<Moving>> moving_;  // by steps
  std::vector<bool> needs_calls_;            // by steps
  std::vector<uint32_t> parent_;             // by module
  size_t parents_ = 0;                       // numbers that parents have, and one for none
  std::vector<bool> moves_;                  // by steps
  std::vector<bool> encloses_;               // by module: one that needs calls
  std::vector<bool> shares_;                 // by module: one that redistributes is inside
  std::vector<Group> groups_;
  std::vector<uint32_t> group_;  // by module: of its first input that is redistributed
  std::unordered_map<uint32_t, std::vector<uint32_t>> more_groups_;
  std::unordered_map<uint32_t, ProgramKey> sections_;  // what sections of the plan make of modules
  std::vector<std::string_view> names_;
  std::unordered_map<std::string_view, int32_t> number_of_name_;
  std::vector<int32_t> name_of_class_;                             // -1: not known, or a number
  std::vector<std::vector<Known>> known_;                          // by steps
  std::vector<std::vector<std::pair<uint64_t, uint32_t>>> brief_;  // by steps
};

}  // namespace

const char* ToString(StepKind kind) { return kStepNames[static_cast<size_t>(kind)]; }

bool Begins(StepKind kind) { return kind <= StepKind::kShareResults; }

void CompileProgram(CompiledPlan& plan) { ProgramCompiler(plan).Run(); }

std::string ToText(const PlannedGroup& group, const MeshShape& mesh) {
  std::string out = ToString(group.axis);
  if (group.ranks != mesh.size(group.axis)) out += " in groups of " + std::to_string(group.ranks);
  return out;
}

std::string ToText(const ProgramStep& step, const ModuleProgram& program, const CompiledPlan& plan) {
  std::string name = ToString(step.kind);
  std::ranges::replace(name, '_', ' ');
  const ModuleSteps& steps = plan.steps[program.steps];
  const auto redistribution = [&](const std::vector<std::optional<Redistribution>>& of) {
    const Redistribution& move = *of[static_cast<size_t>(step.position)];
    return name + " " + std::to_string(step.position) + ": " + move.from.ToText() + " -> " + move.to.ToText() + " on " +
           ToString(step.axis);
  };
  switch (step.kind) {
    case StepKind::kRedistributeInput: {
      std::string out = redistribution(steps.inputs);
      if (!step.shared_with.empty()) return out + ", the result of " + step.shared_with;
      if (step.uses > 1) out += ", one collective for " + std::to_string(step.uses) + " siblings";
      return out;
    }
    case StepKind::kRedistributeOutput: return redistribution(steps.outputs);
    case StepKind::kCastArguments: return name + ": " + step.dtype;
    case StepKind::kCastResults: return name + ": " + (step.dtype.empty() ? "as the first argument" : step.dtype);
    case StepKind::kRecompute: {
      const Recomputed& section = plan.plan->recompute[static_cast<size_t>(step.position)];
      return section.selective() ? name + ": by " + ToText(section) : name;
    }
    case StepKind::kDrawInside:
    case StepKind::kDrawAfter:
      switch (step.stream) {
        case DrawFrom::kOwn: return name + ": numbers of this rank";
        case DrawFrom::kCommon: return name + ": numbers common to tp";
        default: return name + ": as before";
      }
    case StepKind::kAddParameters: {
      for (const std::string& parameter : steps.after)
        name += (&parameter == &steps.after.front() ? ": " : ", ") + parameter;
      return name;
    }
    case StepKind::kRouteInputs:
    case StepKind::kRouteOutputs: return name + ": " + ToText(*steps.route) + " of " + std::to_string(steps.experts);
    case StepKind::kReshardUnit: return step.keeps ? name + ": when its backward ends" : name;
    default: return name;
  }
}

}  // namespace moonshard
