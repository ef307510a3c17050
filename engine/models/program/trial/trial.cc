#include "engine/models/program/trial/trial.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/GradMode.h>

#include "engine/core/base/text.h"
#include "engine/graph/added_after.h"
#include "engine/graph/call_tree.h"
#include "engine/graph/data_sizes.h"
#include "engine/graph/followed_axis.h"
#include "engine/graph/local_sizes.h"
#include "engine/graph/node_uses.h"
#include "engine/models/program/compile_program.h"
#include "engine/models/program/trial/gradient_tape.h"
#include "engine/models/program/trial/node_call.h"
#include "engine/models/program/trial/site.h"
#include "engine/models/program/trial/spread.h"
#include "engine/models/program/trial/try_node.h"

namespace moonshard {
namespace {

using program::CallNode;
using program::CallTree;
using trial::GradientTape;
using trial::NodeCall;
using trial::RankNumber;
using trial::Site;
using trial::Spread;
using trial::Tried;

// The sizes are those that an archive claims.
constexpr int64_t kUncountable = int64_t{1} << 50;

int64_t ElementsOf(const std::vector<int64_t>& sizes) {
  int64_t out = 1;
  for (const int64_t size : sizes) {
    if (__builtin_mul_overflow(out, size, &out)) return kUncountable;
  }
  return std::min(out, kUncountable);
}

class Walk {
 public:
  Walk(const ExportedProgram& program, const CompiledPlan& plan, MeshAxis axis, bool with_loss)
      : program_(program),
        plan_(plan),
        calls_(program::FindCalls(program)),
        late_(AddedAfterOf(program, plan)),
        ruled_(FindLocalValues(program, plan, axis)),
        layouts_(OutputLayouts(program, plan, axis)),
        uses_(NodeUsesOf(program)),
        with_loss_(with_loss),
        axis_(axis),
        ranks_(plan.mesh.size(axis_)),
        tape_(program, plan, axis) {
    spreads_.resize(program.values.size());
    numbers_.resize(program.values.size());
    memory_.resize(program.values.size());
    std::iota(memory_.begin(), memory_.end(), 0U);
    traced_ = memory_;
    next_memory_ = static_cast<uint32_t>(memory_.size());
    has_writes_ = std::ranges::any_of(program.graph.nodes, WritesOperand);
    last_use_.resize(program.values.size(), -1);
    for (size_t i = 0; i < program.graph.nodes.size(); ++i) {
      for (const auto& [name, argument] : program.graph.nodes[i].inputs) NoteUse(argument, static_cast<int64_t>(i));
    }
    for (const ProgramArgument& output : program.graph.outputs) {
      NoteUse(output, static_cast<int64_t>(program.graph.nodes.size()));
    }
    for (const RecordedCall& call : program.calls) recorded_.emplace(std::pair(call.module, call.occurrence), &call);
  }

  ProgramTrials Run() {
    for (const ProgramInput& input : program_.inputs) {
      if (input.value < 0) continue;
      spreads_[static_cast<size_t>(input.value)] = Spread::Replicate();
      numbers_[static_cast<size_t>(input.value)].kind = RankNumber::Kind::kAgreed;
    }
    for (const ProgramTensor& tensor : program_.tensors) {
      if (tensor.value >= 0) SetParameter(tensor);
    }
    const int64_t root = plan_.tree->Find("");
    for (uint32_t i = 0; root >= 0 && i < program_.inputs.size(); ++i) {
      const Redistribution* declared = Declared(static_cast<uint32_t>(root), i, /*input=*/true);
      if (declared == nullptr || program_.inputs[i].value < 0) continue;
      SetUnder(static_cast<uint32_t>(program_.inputs[i].value), declared->to[axis_], static_cast<int32_t>(root));
    }
    RunItems(calls_.calls.front());
    if (root >= 0) CheckOutputs(static_cast<uint32_t>(root));
    if (out_.errors.empty() && program_.trains) {
      for (Diagnostic& one : tape_.Check(spreads_)) out_.errors.push_back(std::move(one));
      out_.unknown_gradients = tape_.TakeUnknownParameters();
    }
    return std::move(out_);
  }

 private:
  void NoteUse(const ProgramArgument& argument, int64_t node) {
    if (argument.kind == ProgramArgument::Kind::kValue) last_use_[argument.value] = node;
    for (const ProgramArgument& element : argument.elements) NoteUse(element, node);
  }

  const Redistribution* Declared(uint32_t module, uint32_t position, bool input) const {
    const ModuleLayouts& layouts = plan_.LayoutsOf(module);
    const auto& moves = input ? layouts.inputs : layouts.outputs;
    return position < moves.size() && moves[position] ? &*moves[position] : nullptr;
  }

  const std::vector<int64_t>& SizesOf(uint32_t value) const { return program_.values[value].sizes; }
  bool IsTensor(uint32_t value) const { return program_.values[value].kind == ProgramValue::Kind::kTensor; }

  void SetUnder(uint32_t value, const Layout& layout, int32_t origin) {
    std::optional<Spread> made = trial::SpreadUnder(layout, SizesOf(value), ranks_);
    spreads_[value] = made ? *std::move(made) : Spread();
    spreads_[value].origin = origin;
  }

  void SetParameter(const ProgramTensor& tensor) {
    const auto value = static_cast<uint32_t>(tensor.value);
    spreads_[value] = Spread::Replicate();
    spreads_[value].zero = tensor.is_zero;
    ParamRef ref;
    if (tensor.kind == ProgramTensor::Kind::kConstant || !plan_.tree->FindParameter(tensor.name, &ref)) return;
    const ModuleLayouts& layouts = plan_.LayoutsOf(ref.module);
    if (ref.param >= layouts.params.size()) return;
    SetUnder(value, FollowedParameter(layouts, ref.param, axis_), static_cast<int32_t>(ref.module));
    const auto looks_up = [&](const ParamRef& one) { return plan_.LayoutsOf(one.module).lookup == Lookup::kMasked; };
    bool table = looks_up(ref);
    for (const std::vector<ParamRef>& same : plan_.tree->ties()) {
      table = table || (std::ranges::find(same, ref) != same.end() && std::ranges::any_of(same, looks_up));
    }
    if (table) tables_.insert(value);
    if (plan_.StepsOf(ref.module).reports_full_shapes) reports_full_.insert(value);
  }

  // --- calls of modules

  uint32_t LastNode(const CallNode& call) const {
    const CallNode::Item& last = call.items.back();
    return last.is_call ? LastNode(calls_.calls[last.index]) : last.index;
  }

  void RunItems(const CallNode& call) {
    for (const CallNode::Item& item : call.items) {
      if (item.is_call) {
        RunCall(calls_.calls[item.index]);
      } else {
        RunNode(item.index, call);
      }
    }
  }

  void RunCall(const CallNode& call) {
    const int64_t module = plan_.tree->Find(call.module);
    const auto found = recorded_.find(std::pair(call.module, call.occurrence));
    if (module < 0 || found == recorded_.end()) {
      RunItems(call);
      return;
    }
    const auto at = static_cast<uint32_t>(module);
    const RecordedCall& recorded = *found->second;
    const std::optional<Route>& route = plan_.LayoutsOf(at).route;
    const auto is_routed = [&](uint32_t position, bool input) {
      const auto here = static_cast<int>(position);
      return route && route->inputs == input && (route->ids == here || route->weights == here);
    };
    std::map<uint32_t, Spread> outside;  // of the arguments that are replaced
    std::map<uint32_t, uint32_t> memory_outside;
    std::set<uint32_t> met;
    std::vector<GradientTape::Crossing> crossings;
    const size_t lent = lent_.size();
    for (const RecordedCall::Place& place : recorded.arguments) {
      if (std::ranges::find(call.inputs, place.value) == call.inputs.end() || !IsTensor(place.value)) continue;
      const Redistribution* declared = Declared(at, place.position, /*input=*/true);
      const bool routed = is_routed(place.position, true);
      if ((declared == nullptr && !routed) || !met.insert(place.value).second) continue;
      const Spread before = spreads_[place.value];
      const bool replaced = (declared != nullptr && Redistribute(place, *declared, at, /*input=*/true)) || routed;
      if (routed) spreads_[place.value] = {};
      if (replaced) {
        outside.emplace(place.value, before);
        memory_outside.emplace(place.value, memory_[place.value]);
        const uint32_t inside = next_memory_++;
        moved_.push_back({place.value, inside, memory_[place.value], LastNode(call)});
        memory_[place.value] = inside;
      }
      crossings.push_back({place.value, place.position, declared, routed, before, spreads_[place.value]});
      const bool moves = declared != nullptr && declared->from[axis_] != declared->to[axis_];
      if (moves && !replaced) lent_.push_back({memory_[place.value], at, place.position});
    }
    tape_.EnterCall(at, crossings);
    RunItems(call);
    lent_.resize(lent);
    tape_.LeaveCall(crossings);
    for (auto& [value, spread] : outside) {
      spreads_[value] = std::move(spread);
      memory_[value] = memory_outside.at(value);
    }
    CheckLate(at, call, recorded);
    std::set<uint32_t> done;
    for (const RecordedCall::Place& place : recorded.results) {
      if (std::ranges::find(call.outputs, place.value) == call.outputs.end() || !IsTensor(place.value)) continue;
      if (!done.insert(place.value).second) continue;
      const Redistribution* declared = Declared(at, place.position, /*input=*/false);
      const bool routed = is_routed(place.position, false);
      if (declared == nullptr && !routed) continue;
      const Spread inside = spreads_[place.value];
      const bool replaced = (declared != nullptr && Redistribute(place, *declared, at, /*input=*/false)) || routed;
      if (routed) spreads_[place.value] = {};
      if (replaced) {
        const uint32_t moved = next_memory_++;
        moved_.push_back({place.value, memory_[place.value], moved, LastNode(call)});
        memory_[place.value] = moved;
      }
      tape_.AddResult(at, {place.value, place.position, declared, routed, spreads_[place.value], inside});
    }
  }

  // Returns whether the tensor is replaced by another; one that is not keeps its memory and what is known of it.
  bool Redistribute(const RecordedCall::Place& place, const Redistribution& redistribution, uint32_t module,
                    bool input) {
    const Spread& is = spreads_[place.value];
    CompareWith(is, redistribution.from, place.value, place.position, module, input);
    const Layout& to = redistribution.to[axis_];
    const Layout& from = redistribution.from[axis_];
    const auto moves = [](const Layout& one) { return one.is_shard() || one.kind == LayoutKind::kPartial; };
    const bool replaced = from != to && (moves(from) || moves(to));
    if (replaced || !is.known()) SetUnder(place.value, redistribution.to[axis_], static_cast<int32_t>(module));
    return replaced;
  }

  void CompareWith(const Spread& is, const Placement& declared, uint32_t value, uint32_t position, uint32_t module,
                   bool input) {
    const Layout& layout = declared[axis_];
    const std::optional<Spread> wanted = trial::SpreadUnder(layout, SizesOf(value), ranks_);
    if (!is.known() || !wanted || (is.zero && !is.is_shard() && !wanted->is_shard()) || is.Same(*wanted)) return;
    if (is.is_full() && wanted->is_full()) return;
    if (!is.lacks.empty()) return;  // CheckLate
    const std::string& path = plan_.tree->modules()[module].path;
    Diagnostic d = MakeDiagnostic(Finding::kFlowDoesNotFit,
                                  std::string(input ? "input " : "output ") + std::to_string(position) + " of " +
                                      (path.empty() ? "the model" : "'" + path + "'") +
                                      " has other elements on the ranks than the plan declares",
                                  SourceOf(plan_, plan_.LayoutsOf(module)));
    d.path = path;
    d.declared = layout.ToString() + ": " + wanted->ToText(SizesOf(value));
    d.required = is.ToText(SizesOf(value)) + ", as the operators make it" + Because(is);
    d.help =
        "declare the layout that the operators make; or gather the tensor at the module that makes it: "
        "output = replicate";
    Report(std::move(d));
  }

  void CheckLate(uint32_t module, const CallNode& call, const RecordedCall& recorded) {
    for (const RecordedCall::Place& place : recorded.results) {
      if (std::ranges::find(call.outputs, place.value) != call.outputs.end())
        CheckLateOf(module, place.value, place.position);
    }
  }

  // Output 0 lacks what the module adds to it, once, and no other output lacks anything.
  void CheckLateOf(uint32_t module, uint32_t value, uint32_t position) {
    Spread& is = spreads_[value];
    const auto added = late_.find(module);
    std::vector<uint32_t> wanted;
    if (position == 0 && added != late_.end()) {
      for (const auto& [parameter, ref] : added->second) {
        if (parameter < program_.values.size()) wanted.push_back(parameter);
      }
    }
    if (!is.known() || (is.lacks.empty() && wanted.empty())) return;
    std::vector<uint32_t> lacks = std::exchange(is.lacks, {});
    std::ranges::sort(lacks);
    if (lacks == wanted) return;
    const uint32_t parameter = lacks.empty() ? wanted.front() : lacks.front();
    const auto times = std::ranges::count(lacks, parameter);
    const std::string& path = plan_.tree->modules()[module].path;
    Diagnostic d =
        MakeDiagnostic(Finding::kFlowDoesNotFit,
                       "output " + std::to_string(position) + " of " + (path.empty() ? "the model" : "'" + path + "'") +
                           " has the parameter '" + program_.values[parameter].name + "' " + std::to_string(times) +
                           (times == 1 ? " time" : " times") +
                           ", which the plan adds to output 0 once, after the "
                           "reduction",
                       SourceOf(plan_, plan_.LayoutsOf(module)));
    d.path = path;
    d.required = "output 0 of the module as the linear layer computes it, with the parameter as its bias";
    d.help = "change the result in the module that calls the linear layer; or do not shard the layer";
    Report(std::move(d));
  }

  // The layout that declares this spread.
  std::optional<Layout> LayoutOf(const Spread& spread, const std::vector<int64_t>& sizes) const {
    if (spread.is_full()) return Layout::Replicate();
    if (spread.is_partial()) return Layout::Partial();
    if (!spread.is_shard() || spread.shards.size() != 1) return std::nullopt;
    const auto dim = static_cast<int>(spread.shards[0].dim);
    constexpr int kMostParts = 8;
    for (int parts = 1; parts <= kMostParts; ++parts) {
      const Layout layout = parts == 1 ? Layout::Shard(dim) : Layout::PackedEqually(dim, parts);
      const std::optional<Spread> made = trial::SpreadUnder(layout, sizes, ranks_);
      if (made && made->Same(spread)) return layout.Sized(sizes[static_cast<size_t>(dim)]);
    }
    return std::nullopt;
  }

  void CheckOutputs(uint32_t root) {
    out_.outputs.resize(program_.graph.outputs.size());
    for (uint32_t i = 0; i < program_.graph.outputs.size(); ++i) {
      const ProgramArgument& output = program_.graph.outputs[i];
      if (output.kind != ProgramArgument::Kind::kValue || !IsTensor(output.value)) continue;
      CheckLateOf(root, output.value, i);
      const Spread& is = spreads_[output.value];
      out_.outputs[i] = layouts_[i] ? layouts_[i] : LayoutOf(is, SizesOf(output.value));
      if (const Redistribution* declared = Declared(root, i, /*input=*/false)) {
        CompareWith(is, declared->from, output.value, i, root, /*input=*/false);
      } else if (is.is_partial()) {
        Diagnostic d = MakeDiagnostic(Finding::kFlowDoesNotFit,
                                      "output " + std::to_string(i) +
                                          " of the model is partial: each rank has a term "
                                          "of it",
                                      LineOf(is));
        d.required = "the sum over the ranks";
        d.help = "reduce the tensor at the output of a module: output = { partial, replicate }";
        Report(std::move(d));
      } else if (is.is_shard() && !out_.outputs[i]) {
        Diagnostic d = MakeDiagnostic(Finding::kNotSupported,
                                      "output " + std::to_string(i) +
                                          " of the model leaves in shards that no layout "
                                          "declares, so eval and verify cannot gather it",
                                      LineOf(is));
        d.severity = Severity::kWarning;
        d.declared = is.ToText(SizesOf(output.value));
        d.help = "gather the tensor at the module that makes it: output = replicate";
        Report(std::move(d));
      }
    }
  }

  // --- reports

  SourceSpan LineOf(const Spread& spread) const {
    return spread.origin < 0 ? SourceSpan() : SourceOf(plan_, plan_.LayoutsOf(static_cast<size_t>(spread.origin)));
  }

  std::string Because(const Spread& spread) const {
    if (spread.origin < 0) return "";
    const std::string& path = plan_.tree->modules()[static_cast<size_t>(spread.origin)].path;
    const std::string line = LineOf(spread).ToString();
    return ", because of the rule of '" + path + "'" + (line.empty() ? "" : " (" + line + ")");
  }

  static std::string Quote(const std::string& path) { return path.empty() ? "the model" : "'" + path + "'"; }

  // Equal layers share one finding.
  void Report(Diagnostic diagnostic) {
    if (reported_.insert(PathClassOf(diagnostic.path) + "\n" + diagnostic.message).second)
      out_.errors.push_back(std::move(diagnostic));
  }

  std::string NodeText(uint32_t index) const {
    const ProgramNode& node = program_.graph.nodes[index];
    return "node '" + node.name + "' (" + node.target + (node.place.empty() ? "" : ", " + node.place) + ")";
  }

  void Refuse(uint32_t index, const CallNode& call, const Site& site, const std::string& why) {
    const ProgramNode& node = program_.graph.nodes[index];
    const Spread* cause = nullptr;
    std::vector<std::string> operands;
    const auto add = [&](const std::string& name, const ProgramArgument& argument) {
      if (argument.kind != ProgramArgument::Kind::kValue) return;
      const auto i =
          static_cast<size_t>(std::ranges::find(site.run->reads(), argument.value) - site.run->reads().begin());
      if (!site.IsTensor(i)) {
        if (site.numbers[i].differs()) operands.push_back(name + " " + NumberText(site.numbers[i]));
        return;
      }
      const Spread& spread = site.spreads[i];
      operands.push_back(name + " " + spread.ToText(SizesOf(argument.value)));
      if (cause == nullptr && (spread.is_shard() || spread.is_partial()) && spread.origin >= 0) cause = &spread;
    };
    for (const auto& [name, argument] : node.inputs) {
      add(name, argument);
      for (const ProgramArgument& element : argument.elements) add(name, element);
    }
    Diagnostic d = MakeDiagnostic(Finding::kFixedSize,
                                  NodeText(index) + " of " + (call.module.empty() ? "the model" : Quote(call.module)) +
                                      " computes something else on the ranks than in the full model: " + why,
                                  cause == nullptr ? SourceSpan() : LineOf(*cause));
    d.path = call.module;
    d.declared = Join(operands, ", ");
    d.required = "operands of which every rank makes the full result, its shard of it, or a term of it";
    if (cause != nullptr) d.required += "; they are sharded" + Because(*cause);
    d.help = "gather the tensor: output = replicate, or replicated {}, at " +
             (cause == nullptr ? "the module that makes it"
                               : Quote(plan_.tree->modules()[static_cast<size_t>(cause->origin)].path));
    Report(std::move(d));
  }

  static std::string NumberText(const RankNumber& number) {
    std::vector<std::string> ranks;
    const auto text = [](const c10::IValue& one) {
      return one.isBool()  ? std::string(one.toBool() ? "true" : "false")
             : one.isInt() ? std::to_string(one.toInt())
                           : std::to_string(one.toScalar().toDouble());
    };
    for (const c10::IValue& one : number.local) ranks.push_back(text(one));
    return Join(ranks, " and ") + " of " + text(number.full);
  }

  // --- nodes

  void RunNode(uint32_t index, const CallNode& call) {
    const ProgramNode& node = program_.graph.nodes[index];
    switch (node.kind) {
      case ProgramNode::Kind::kArithmetic: RunArithmetic(node); return;
      case ProgramNode::Kind::kBranch: RunPredicate(index, call); return;
      case ProgramNode::Kind::kJoin:
        JoinBranches(index, call);
        tape_.AddJoin(node);
        return;
      case ProgramNode::Kind::kEnterGradMode:
      case ProgramNode::Kind::kEnterAutocast: EnterMode(node); return;
      case ProgramNode::Kind::kLeave:
        modes_.pop_back();
        tape_.SetRecording(modes_.empty() || modes_.back());
        return;
      case ProgramNode::Kind::kOperator: break;
      default: return;
    }
    ++out_.nodes;
    if (node.target == "aten::sym_size" && RunSize(node)) return;
    if (uses_[index] == NodeUse::kLoss && !with_loss_) {
      for (const uint32_t made : node.outputs) Forget(made);
      return;
    }
    std::optional<NodeCall> run = NodeCall::Of(program_, node);
    if (!run) {
      for (const uint32_t made : node.outputs) SetRuled(made);
      tape_.AddUnknown(node, {}, {});
      return;
    }
    RunOperator(index, call, std::make_shared<const NodeCall>(*std::move(run)));
  }

  void EnterMode(const ProgramNode& node) {
    const bool records = modes_.empty() || modes_.back();
    const bool off =
        node.kind == ProgramNode::Kind::kEnterGradMode && !node.inputs.empty() && node.inputs[0].second.integer == 0;
    const bool on = node.kind == ProgramNode::Kind::kEnterGradMode && !off;
    modes_.push_back(on || (records && !off));
    tape_.SetRecording(modes_.back());
  }

  bool RunSize(const ProgramNode& node) {
    if (node.inputs.size() != 2 || node.outputs.size() != 1 || node.outputs[0] == ProgramNode::kNoValue) return false;
    const ProgramArgument& of = node.inputs[0].second;
    if (of.kind != ProgramArgument::Kind::kValue || node.inputs[1].second.kind != ProgramArgument::Kind::kInt)
      return false;
    const std::vector<int64_t>& sizes = SizesOf(of.value);
    int64_t dim = node.inputs[1].second.integer;
    if (dim < 0) dim += static_cast<int64_t>(sizes.size());
    if (dim < 0 || dim >= static_cast<int64_t>(sizes.size())) return false;
    const Spread& spread = spreads_[of.value];
    RankNumber& number = numbers_[node.outputs[0]];
    number = {};
    if (!spread.known() && !reports_full_.contains(of.value)) return true;
    number.kind = RankNumber::Kind::kKnown;
    number.full = sizes[static_cast<size_t>(dim)];
    for (int64_t rank = 0; rank < ranks_; ++rank) {
      const Spread::Shard* shard = reports_full_.contains(of.value) ? nullptr : spread.Along(dim);
      number.local.emplace_back(shard != nullptr ? static_cast<int64_t>(shard->of(static_cast<size_t>(rank)).size())
                                                 : sizes[static_cast<size_t>(dim)]);
    }
    return true;
  }

  RankNumber NumberOf(const ProgramArgument& argument) const {
    RankNumber out{RankNumber::Kind::kKnown};
    switch (argument.kind) {
      case ProgramArgument::Kind::kValue: return numbers_[argument.value];
      case ProgramArgument::Kind::kInt: out.full = argument.integer; break;
      case ProgramArgument::Kind::kFloat: out.full = argument.number; break;
      case ProgramArgument::Kind::kBool: out.full = argument.integer != 0; break;
      default: return {};
    }
    out.local.assign(static_cast<size_t>(ranks_), out.full);
    return out;
  }

  void RunArithmetic(const ProgramNode& node) {
    if (node.outputs.empty() || node.outputs[0] == ProgramNode::kNoValue || node.inputs.empty()) return;
    const int code = program::ArithmeticCode(node.target);
    const RankNumber a = NumberOf(node.inputs[0].second);
    const RankNumber b = node.inputs.size() > 1 ? NumberOf(node.inputs[1].second) : a;
    RankNumber made;
    if (code >= 0 && a.kind == RankNumber::Kind::kKnown && b.kind == RankNumber::Kind::kKnown) {
      try {
        made.full = program::Arithmetic(code, a.full, b.full);
        for (size_t rank = 0; rank < static_cast<size_t>(ranks_); ++rank)
          made.local.push_back(program::Arithmetic(code, a.local[rank], b.local[rank]));
        made.kind = RankNumber::Kind::kKnown;
      } catch (const c10::Error&) {
        made = {};
      }
    } else if (a.kind != RankNumber::Kind::kUnknown && b.kind != RankNumber::Kind::kUnknown && !a.differs() &&
               !b.differs()) {
      made.kind = RankNumber::Kind::kAgreed;
    }
    numbers_[node.outputs[0]] = std::move(made);
  }

  void RunPredicate(uint32_t index, const CallNode& call) {
    const ProgramArgument& predicate = program_.graph.nodes[index].inputs[0].second;
    if (predicate.kind != ProgramArgument::Kind::kValue || !IsTensor(predicate.value)) return;
    const Spread& is = spreads_[predicate.value];
    if (!is.known() || is.is_full()) return;
    Diagnostic d = MakeDiagnostic(Finding::kFlowDoesNotFit,
                                  NodeText(index) + ": the predicate is not the same on every rank", LineOf(is));
    d.path = call.module;
    d.declared = is.ToText(SizesOf(predicate.value));
    d.required = "the same predicate on every rank";
    d.help = "gather the tensor that it is computed from: output = replicate";
    Report(std::move(d));
  }

  void JoinBranches(uint32_t index, const CallNode& call) {
    const ProgramNode& node = program_.graph.nodes[index];
    const size_t results = node.outputs.size();
    for (size_t i = 0; i < results; ++i) {
      if (node.outputs[i] == ProgramNode::kNoValue || !IsTensor(node.outputs[i])) continue;
      const Spread& a = spreads_[node.inputs[i].second.value];
      const Spread& b = spreads_[node.inputs[results + i].second.value];
      Spread made = a.zero ? b : a;
      made.zero = a.zero && b.zero;
      made.constant = at::Tensor();
      if (!a.known() || !b.known()) {
        made = {};
      } else if (!a.Same(b) && !(a.zero && b.is_partial()) && !(b.zero && a.is_partial())) {
        Diagnostic d = MakeDiagnostic(Finding::kFlowDoesNotFit,
                                      NodeText(index) + ": result " + std::to_string(i) +
                                          " has other elements on the ranks in the second branch than in the first",
                                      LineOf(a.origin >= 0 ? a : b));
        d.path = call.module;
        d.declared = a.ToText(SizesOf(node.outputs[i])) + " and " + b.ToText(SizesOf(node.outputs[i]));
        d.required = "the same layout of both branches";
        d.help = "gather the tensors: output = replicate";
        Report(std::move(d));
        made = {};
      }
      spreads_[node.outputs[i]] = std::move(made);
    }
  }

  // --- operators

  // The layout that the rules tell of a value.
  void SetRuled(uint32_t value) {
    if (value == ProgramNode::kNoValue) return;
    if (!IsTensor(value)) {
      numbers_[value] = {};
      return;
    }
    spreads_[value] = RuledSpread(value);
  }

  Spread RuledSpread(uint32_t value) const {
    const LocalValue& ruled = ruled_[value];
    Spread out;
    if (!ruled.known) return out;
    out = ruled.partial ? Spread::Partial() : Spread::Replicate();
    for (size_t i = 0; i < ruled.dims.size(); ++i) {
      const LocalDim& dim = ruled.dims[i];
      if (!dim.is_sharded()) continue;
      if (out.is_shard() || out.is_partial() || !dim.in_order) return {};
      out.kind = Spread::Kind::kShard;
      trial::Elements elements(static_cast<size_t>(ranks_));
      std::vector<LocalDim::Part> parts = dim.parts;
      if (parts.empty()) parts.push_back({dim.full, dim.local});
      int64_t begin = 0;
      for (const LocalDim::Part& part : parts) {
        if (part.full == 0 || part.local == 0 || part.local * ranks_ % part.full != 0) return {};
        const int64_t replicas = part.local * ranks_ / part.full;
        for (int64_t rank = 0; rank < ranks_; ++rank) {
          for (int64_t j = 0; j < part.local; ++j)
            elements[static_cast<size_t>(rank)].push_back(begin + rank / replicas * part.local + j);
        }
        begin += part.full;
      }
      out.shards = {Spread::Shard(static_cast<int64_t>(i), std::move(elements))};
    }
    return out;
  }

  // What is known of the operands of a node, now.
  Site SiteOf(const ProgramNode& node, std::shared_ptr<const NodeCall> run, const CallNode& call) const {
    Site site{&program_, &node, std::move(run), ranks_};
    const auto added = late_.find(static_cast<uint32_t>(plan_.tree->Find(call.module)));
    for (const uint32_t value : site.run->reads()) {
      site.spreads.push_back(spreads_[value]);
      site.numbers.push_back(numbers_[value]);
      site.late.push_back(added != late_.end() && added->second.contains(value));
    }
    site.has_writes = has_writes_;
    site.looks_up = node.target == "aten::embedding" && site.operands() == 2 &&
                    tables_.contains(site.run->reads()[0]) && site.spreads[0].Along(0) != nullptr;
    return site;
  }

  // Equal sites are tried once.
  const Tried& Try(const Site& site, std::shared_ptr<const Tried>& held) {
    const std::optional<std::string> key = site.Key();
    std::shared_ptr<const Tried> fresh;
    std::shared_ptr<const Tried>& tried = key ? tried_[*key] : fresh;
    if (!tried) tried = std::make_shared<const Tried>(trial::TryNode(site));
    held = tried;
    return *held;
  }

  // The number of products that a matrix product or a convolution adds up; 0 for other operators.
  int64_t WorkOf(const ProgramNode& node) const {
    const std::string& name = node.target;
    const bool convolves = name.starts_with("aten::conv") && !name.starts_with("aten::conv_transpose");
    const bool adds = name == "aten::addmm" || name == "aten::baddbmm";
    if (!convolves && !adds && name != "aten::linear" && name != "aten::matmul" && name != "aten::mm" &&
        name != "aten::bmm")
      return 0;
    const size_t factor = convolves || adds ? 1 : 0;  // the weight, or the first matrix
    if (node.inputs.size() <= factor || node.inputs[factor].second.kind != ProgramArgument::Kind::kValue) return 0;
    const std::vector<int64_t>& sizes = SizesOf(node.inputs[factor].second.value);
    if (sizes.empty() || node.outputs.empty() || node.outputs[0] == ProgramNode::kNoValue) return 0;
    const int64_t terms =
        convolves ? ElementsOf({sizes.begin() + 1, sizes.end()}) : sizes.back();  // of one element of the result
    int64_t out = 0;
    return __builtin_mul_overflow(ElementsOf(SizesOf(node.outputs[0])), terms, &out) ? kUncountable : out;
  }

  void RunOperator(uint32_t index, const CallNode& call, std::shared_ptr<const NodeCall> run) {
    const ProgramNode& node = program_.graph.nodes[index];
    const Site site = SiteOf(node, std::move(run), call);
    bool known = true;
    bool full = true;  // every operand is full, every number that of the full model
    bool constant = true;
    bool empty = false;
    int64_t elements = 0;  // of operands and results
    for (size_t i = 0; i < site.operands(); ++i) {
      const RankNumber& number = site.numbers[i];
      if (!site.IsTensor(i)) {
        known = known && number.kind != RankNumber::Kind::kUnknown;
        full = full && !number.differs();
        constant = constant && number.kind == RankNumber::Kind::kKnown && !number.differs();
        continue;
      }
      const Spread& spread = site.spreads[i];
      known = known && spread.known();
      full = full && spread.is_full() && !site.late[i];
      constant = constant && spread.constant.defined();
      const std::vector<int64_t>& sizes = site.value(i).sizes;
      empty = empty || std::ranges::find(sizes, 0) != sizes.end();
      elements = std::min(elements + ElementsOf(sizes), kUncountable);
    }
    for (const uint32_t made : node.outputs) {
      if (made == ProgramNode::kNoValue || !IsTensor(made)) continue;
      elements = std::min(elements + ElementsOf(SizesOf(made)), kUncountable);
    }
    elements = std::max(elements, WorkOf(node) / trial::kProductsOfAnElement);
    if (node.target == "aten::scaled_dot_product_attention" && site.operands() > 1) {
      // The scores, of each query for each key.
      const std::vector<int64_t>& query = site.value(0).sizes;
      const std::vector<int64_t>& key = site.value(1).sizes;
      if (query.size() > 1 && key.size() > 1) {
        std::vector<int64_t> scores(query.begin(), query.end() - 1);
        scores.push_back(key[key.size() - 2]);
        elements = std::min(elements + ElementsOf(scores), kUncountable);
      }
    }
    const bool ruled = std::ranges::all_of(
        node.outputs, [&](uint32_t made) { return made == ProgramNode::kNoValue || ruled_[made].known; });
    const bool large = elements > (ruled ? trial::kMostElementsWithRule : trial::kMostElements);
    if (known && !large && !empty && !site.run->is_random()) {
      std::shared_ptr<const Tried> held;
      const Tried& tried = Try(site, held);
      if (tried.kind == Tried::Kind::kFails && !full) {
        ++out_.tried;
        if (uses_[index] != NodeUse::kNothing) Refuse(index, call, site, tried.why);
        for (const uint32_t made : node.outputs) Forget(made);
        for (const uint32_t written : site.run->writes()) ForgetMemory(written, index);
        return;
      }
      if (tried.kind == Tried::Kind::kHolds) {
        out_.tried += full ? 0 : 1;
        tape_.AddOperator(index, call.module, site, held, Take(index, call, site, tried, constant));
        CountUnknown(node, index);
        return;
      }
    }
    ShareBySchema(site);
    std::vector<GradientTape::Memory> memories;
    if (known && full) {
      for (const uint32_t made : node.outputs) {
        if (made == ProgramNode::kNoValue) continue;
        spreads_[made] = Spread::Replicate();
        numbers_[made] = {RankNumber::Kind::kAgreed};
      }
      for (const uint32_t written : site.run->writes())
        memories.push_back(Traced(written, Write(index, call, site, written, Spread::Replicate())));
      tape_.AddFull(node, memories);
      return;
    }
    std::map<uint32_t, Spread> spreads;
    for (size_t i = 0; i < site.operands(); ++i) {
      if (site.IsTensor(i)) spreads.emplace(site.run->reads()[i], site.spreads[i]);
    }
    for (const uint32_t written : site.run->writes()) {
      memories.push_back(Traced(written, OthersOf(written, node)));
      if (ForgetMemory(written, index) && known) ++out_.unknown[node.target];
    }
    for (const uint32_t made : node.outputs) {
      SetRuled(made);
      if (made != ProgramNode::kNoValue && spreads_[made].known()) spreads_[made].lacks = site.Lacks();
    }
    tape_.AddUnknown(node, std::move(spreads), memories);
    if (large) ++out_.large;
    if (known) CountUnknown(node, index);
  }

  void CountUnknown(const ProgramNode& node, uint32_t index) {
    const bool unknown = std::ranges::any_of(node.outputs, [&](uint32_t made) {
      return made != ProgramNode::kNoValue && IsTensor(made) && !spreads_[made].known();
    });
    if (unknown && uses_[index] != NodeUse::kNothing) ++out_.unknown[node.target];
  }

  void Forget(uint32_t value) {
    if (value == ProgramNode::kNoValue) return;
    spreads_[value] = {};
    numbers_[value] = {};
  }

  // Sets the results, and what is known of the tensors that share memory with what the operator writes. Returns what it
  // writes.
  std::vector<GradientTape::Memory> Take(uint32_t index, const CallNode& call, const Site& site, const Tried& tried,
                                         bool constant) {
    const ProgramNode& node = program_.graph.nodes[index];
    const std::vector<at::Tensor> constants =
        constant && site.run->writes().empty() ? ConstantsOf(site, tried) : std::vector<at::Tensor>();
    std::vector<GradientTape::Memory> out;
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      const uint32_t made = node.outputs[i];
      if (made == ProgramNode::kNoValue) continue;
      if (!IsTensor(made)) {
        numbers_[made] = tried.numbers[i];
        continue;
      }
      spreads_[made] = tried.spreads[i];
      if (i < constants.size()) spreads_[made].constant = constants[i];
      if (i < tried.of.size() && tried.of[i]) Share(node, made, site.run->reads()[*tried.of[i]]);
    }
    for (size_t i = 0; i < site.run->writes().size(); ++i) {
      const uint32_t written = site.run->writes()[i];
      out.push_back(Traced(written, Write(index, call, site, written, tried.written[i])));
    }
    return out;
  }

  // The values of results of operators on constants.
  std::vector<at::Tensor> ConstantsOf(const Site& site, const Tried& tried) {
    constexpr int64_t kMostConstant = 1 << 16;
    if (site.run->makes_memory()) return {};
    std::vector<at::Tensor> out(site.node->outputs.size());
    try {
      const trial::Drawing drawing{.wide = false};
      const std::vector<c10::IValue> made = trial::CallOn(site, trial::DrawOperands(site, drawing).full, -1);
      for (size_t i = 0; i < out.size() && i < made.size(); ++i) {
        if (!made[i].isTensor() || !made[i].toTensor().defined() || !tried.spreads[i].is_full()) continue;
        if (made[i].toTensor().numel() > kMostConstant) continue;
        out[i] = made[i].toTensor().clone();
        constants_.push_back(out[i]);
      }
    } catch (const std::exception&) {
      return {};
    }
    return out;
  }

  void Share(const ProgramNode& node, uint32_t made, uint32_t given) {
    // Gradients do not pass between a tensor and its detached view, also where one of them is written.
    if (node.target != "aten::detach") traced_[made] = traced_[given];
    const uint32_t memory = memory_[given];
    const uint32_t before = memory_[made];
    if (memory == before) return;
    // What has the memory of a result already, has it by an earlier operand.
    std::ranges::replace(memory_, before, memory);
  }

  bool IsReadAfter(uint32_t value, uint32_t index) const { return last_use_[value] > static_cast<int64_t>(index); }

  void RefuseWrite(uint32_t index, const CallNode& call, const Site& site, const Spread& now, uint32_t value) {
    Refuse(index, call, site,
           "it writes " + std::string(now.is_partial() ? "a partial tensor" : "a tensor of another layout") +
               " into memory that value '" + program_.values[value].name + "' shares, which is read later");
  }

  // `written` holds `now`. Others that share its memory keep their layout if the layout of `written` stays, or if
  // nothing but zeros was in the memory. Returns the others.
  std::vector<uint32_t> Write(uint32_t index, const CallNode& call, const Site& site, uint32_t written,
                              const Spread& now) {
    const Spread was = spreads_[written];
    std::vector<uint32_t> others = OthersOf(written, program_.graph.nodes[index]);
    bool all_zero = was.zero;
    for (const uint32_t value : others) all_zero = all_zero && spreads_[value].zero;
    for (uint32_t value = 0; value < memory_.size(); ++value) {
      if (IsTensor(value) && memory_[value] == memory_[written]) spreads_[value].constant = at::Tensor();
    }
    spreads_[written] = now;
    spreads_[written].constant = at::Tensor();
    const bool stays = was.known() && (was.Same(now) || now.zero);
    for (const uint32_t value : others) {
      Spread& other = spreads_[value];
      other.zero = other.zero && now.zero;
      other.uniform.clear();
      if (stays) continue;
      if (all_zero && now.is_partial() && !other.is_shard()) {
        other = now;
        other.uniform.clear();
        continue;
      }
      if (all_zero && TakesElements(other, now)) continue;
      if (IsReadAfter(value, index) && other.known() && now.known()) RefuseWrite(index, call, site, now, value);
      other = {};
    }
    CheckMoved(index, call, site, written);
    CheckLent(index, call, site, written);
    return others;
  }

  // Without the others to which gradients do not pass.
  GradientTape::Memory Traced(uint32_t written, std::vector<uint32_t> others) const {
    std::erase_if(others, [&](uint32_t value) { return traced_[value] != traced_[written]; });
    return {written, std::move(others)};
  }

  // The values that have the memory of `written` too, without the results of the node that writes it.
  std::vector<uint32_t> OthersOf(uint32_t written, const ProgramNode& node) const {
    std::vector<uint32_t> out;
    for (uint32_t value = 0; value < memory_.size(); ++value) {
      if (value == written || !IsTensor(value) || memory_[value] != memory_[written]) continue;
      if (std::ranges::find(node.outputs, value) == node.outputs.end()) out.push_back(value);
    }
    return out;
  }

  // A result of an operator that was not tried may be a view of an operand.
  void ShareBySchema(const Site& site) {
    for (size_t i = 0; has_writes_ && i < site.node->outputs.size(); ++i) {
      const uint32_t made = site.node->outputs[i];
      const std::optional<size_t> of = site.run->may_view();
      if (made != ProgramNode::kNoValue && IsTensor(made) && of) Share(*site.node, made, site.run->reads()[*of]);
    }
  }

  // On one rank, what a redistribution replaces is one tensor with what replaces it, and so is all that has the memory
  // of either: none of it may be read after the write.
  void CheckMoved(uint32_t index, const CallNode& call, const Site& site, uint32_t written) {
    std::set<uint32_t> joined = {memory_[written]};
    for (size_t before = 0; before != joined.size();) {
      before = joined.size();
      for (const Moved& moved : moved_) {
        if (joined.contains(moved.inside)) joined.insert(moved.outside);
        if (joined.contains(moved.outside)) joined.insert(moved.inside);
      }
    }
    if (joined.size() == 1) return;
    for (uint32_t value = 0; value < memory_.size(); ++value) {
      if (!IsTensor(value) || !joined.contains(memory_[value])) continue;
      uint32_t behind = index;
      bool far = memory_[value] != memory_[written];
      // Inside of the call the value is the moved tensor; only what reads it behind the call reads the other.
      for (const Moved& moved : moved_) {
        if (far || moved.value != value || moved.inside != memory_[written]) continue;
        far = true;
        behind = std::max(index, moved.until);
      }
      if (!far || !IsReadAfter(value, behind)) continue;
      Refuse(index, call, site,
             "it writes memory that value '" + program_.values[value].name +
                 "' shares, which is read later; but the plan redistributes the tensor, so the ranks write another");
      spreads_[value] = {};
    }
  }

  // The redistribution of a gradient alone gives the module the tensor itself, as a view that no operator may write.
  void CheckLent(uint32_t index, const CallNode& call, const Site& site, uint32_t written) {
    if (!program_.trains || (!modes_.empty() && !modes_.back())) return;
    const auto found = std::ranges::find(lent_, memory_[written], &Lent::memory);
    if (found == lent_.end()) return;
    const std::string& path = plan_.tree->modules()[found->module].path;
    Refuse(index, call, site,
           "it writes input " + std::to_string(found->position) + " of " + Quote(path) +
               ", of which the plan redistributes the gradient: that of what is written would not pass there");
  }

  // Equal slices of zeros stand for any elements: those that were written.
  static bool TakesElements(Spread& zeros, const Spread& now) {
    if (!zeros.is_shard() || !now.is_shard() || zeros.shards.size() != 1 || now.shards.size() != 1) return false;
    if (zeros.shards[0].dim != now.shards[0].dim) return false;
    for (size_t rank = 0; rank < zeros.shards[0].elements->size(); ++rank) {
      if (zeros.shards[0].of(rank).size() != now.shards[0].of(rank).size()) return false;
    }
    zeros.shards = now.shards;
    zeros.origin = now.origin;
    return true;
  }

  // Nothing is known any more of what has this memory. Returns whether it is read later.
  bool ForgetMemory(uint32_t written, uint32_t index) {
    const uint32_t memory = memory_[written];
    bool read = false;
    for (uint32_t value = 0; value < memory_.size(); ++value) {
      if (!IsTensor(value) || memory_[value] != memory) continue;
      read = read || (spreads_[value].known() && IsReadAfter(value, index));
      spreads_[value] = {};
    }
    return read;
  }

  // An argument of an open call of which the plan redistributes the gradient alone.
  struct Lent {
    uint32_t memory = 0;
    uint32_t module = 0;
    uint32_t position = 0;
  };

  // A tensor that a redistribution replaces, and its memory on both sides of the boundary. On one rank it is one.
  struct Moved {
    uint32_t value = 0;
    uint32_t inside = 0;
    uint32_t outside = 0;
    uint32_t until = 0;  // the last node of the call whose input it is
  };

  const ExportedProgram& program_;
  const CompiledPlan& plan_;
  CallTree calls_;
  AddedAfter late_;
  std::vector<LocalValue> ruled_;
  std::vector<std::optional<Layout>> layouts_;  // by output of the program
  std::vector<NodeUse> uses_;
  bool with_loss_ = true;
  MeshAxis axis_ = MeshAxis::kTp;
  int64_t ranks_ = 1;
  std::map<std::pair<std::string, int32_t>, const RecordedCall*> recorded_;
  std::vector<Spread> spreads_;      // by value
  std::vector<RankNumber> numbers_;  // likewise
  std::vector<uint32_t> memory_;     // likewise: a number, equal for values with the same memory
  std::vector<uint32_t> traced_;     // likewise, but another one for a detached view
  uint32_t next_memory_ = 0;
  std::vector<Moved> moved_;
  std::vector<Lent> lent_;           // innermost call last
  bool has_writes_ = false;          // an operator writes one of its operands
  std::vector<int64_t> last_use_;    // likewise: the last node that reads it; outputs count as a node behind the last
  std::set<uint32_t> tables_;        // parameters whose rows are looked up locally
  std::set<uint32_t> reports_full_;  // parameters whose sizes the graph sees in full
  std::set<std::string> reported_;
  std::map<std::string, std::shared_ptr<const Tried>> tried_;  // by Site::Key
  std::vector<at::Tensor> constants_;                          // that a key names
  std::vector<bool> modes_;  // open regions, innermost last: whether gradients are recorded
  GradientTape tape_;
  ProgramTrials out_;
};

}  // namespace

ProgramTrials TryOperators(const ExportedProgram& program, const CompiledPlan& plan, MeshAxis axis, bool with_loss) {
  const c10::AutoGradMode no_gradients(false);
  const graph::DataSized sized(program);
  return Walk(sized.program(), plan, axis, with_loss).Run();
}

}  // namespace moonshard
