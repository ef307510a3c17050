#include "engine/graph/program_checks.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "engine/core/base/text.h"
#include "engine/graph/call_tree.h"
#include "engine/graph/data_flow_of.h"
#include "engine/graph/followed_axis.h"
#include "engine/graph/size_rules/local_number.h"

namespace moonshard {
namespace {

std::string Quote(const std::string& text) { return "'" + text + "'"; }

std::string NumberText(const std::optional<double>& number) { return number ? graph::NumberText(*number) : "a number"; }

class Reporter {
 public:
  Reporter(const SizeConflicts& conflicts, const ExportedProgram& program, const CompiledPlan& plan, LossBy loss)
      : conflicts_(conflicts),
        program_(program),
        plan_(plan),
        warns_of_loss_(loss == LossBy::kCaller && conflicts.plain_loss && IsCausalLm(program)) {}

  Diagnostics Report() {
    // Other conflicts say more of what a condition was recorded for.
    if (conflicts_.sizes.empty() && conflicts_.boundaries.empty()) {
      for (const GuardConflict& one : conflicts_.guards) Add(program_.guards[one.guard].text, OfGuard(one));
    }
    for (const BoundaryConflict& one : conflicts_.boundaries) Add(KeyOf(one), OfBoundary(one));
    for (const SizeConflict& one : conflicts_.sizes) Add(KeyOf(one), OfSize(one));
    for (size_t i = 0; i < out_.size(); ++i) {
      if (counts_[i] > 1) out_[i].message += " (and " + std::to_string(counts_[i] - 1) + " more of the same kind)";
    }
    return std::move(out_);
  }

 private:
  // Equal in layers that do the same.
  std::string KeyOf(const BoundaryConflict& one) const {
    return "b " + PathClassOf(PathOf(one.module)) + (one.input ? " in " : " out ") + std::to_string(one.position) +
           " " + std::to_string(one.dim) + " " + std::to_string(one.local) + " " + std::to_string(one.declared);
  }
  std::string KeyOf(const SizeConflict& one) const {
    return "s " + PathClassOf(one.module) + " " + program_.graph.nodes[one.node].target + " " + one.message;
  }

  void Add(const std::string& key, Diagnostic diagnostic) {
    const auto [found, fresh] = index_.try_emplace(key, out_.size());
    if (fresh) {
      out_.push_back(std::move(diagnostic));
      counts_.push_back(0);
    }
    ++counts_[found->second];
  }

  const std::string& PathOf(uint32_t module) const { return plan_.tree->modules()[module].path; }

  const ShardOrigin* Origin(int32_t index) const {
    return index < 0 ? nullptr : &conflicts_.origins[static_cast<size_t>(index)];
  }

  SourceSpan LineOf(const ShardOrigin* origin) const {
    if (origin == nullptr) return {};
    const ModuleLayouts& layouts = plan_.LayoutsOf(origin->module);
    return origin->kind == ShardOrigin::Kind::kParameter ? SourceOf(plan_, layouts, origin->index)
                                                         : SourceOf(plan_, layouts);
  }

  // "'lm_head.weight' is shard(0) (plans/llama.lua:12)"
  std::string Text(const ShardOrigin& origin) const {
    const ModuleLayouts& layouts = plan_.LayoutsOf(origin.module);
    std::string what;
    switch (origin.kind) {
      case ShardOrigin::Kind::kParameter:
        what = Quote(plan_.tree->PathOf({origin.module, origin.index})) + " is " +
               FollowedParameter(layouts, origin.index, conflicts_.axis).ToString();
        break;
      case ShardOrigin::Kind::kInput:
        what = "input " + std::to_string(origin.index) + " of " + Quote(PathOf(origin.module)) + " is used as " +
               layouts.inputs[origin.index]->to[conflicts_.axis].ToString();
        break;
      case ShardOrigin::Kind::kOutput:
        what = "output " + std::to_string(origin.index) + " of " + Quote(PathOf(origin.module)) + " leaves as " +
               layouts.outputs[origin.index]->to[conflicts_.axis].ToString();
        break;
    }
    const std::string line = LineOf(&origin).ToString();
    return line.empty() ? what : what + " (" + line + ")";
  }

  // "node 'view_3' (aten::view, modeling_llama.py:245)"
  std::string NodeText(uint32_t index) const {
    const ProgramNode& node = program_.graph.nodes[index];
    return "node " + Quote(node.name) + " (" + node.target + (node.place.empty() ? "" : ", " + node.place) + ")";
  }

  // What makes the size follow from the shard, or the shard full.
  std::string Fix(SizeConflict::Kind kind, bool branches, const ShardOrigin* origin, const ShardOrigin* other) const {
    if (origin == nullptr) return "gather the tensor: output = replicate";
    const auto cut = [&](const ShardOrigin& one) {
      return plan_.tree->PathOf({one.module, one.index}) + ":" + std::to_string(one.dim);
    };
    std::string out;
    if (kind == SizeConflict::Kind::kCrossesShards) {
      out = "shard each part of the dim by itself, with packed(dim, { sizes }); or gather";
    } else if (kind == SizeConflict::Kind::kFollowsShard || kind == SizeConflict::Kind::kComputed) {
      out = "read the number from the model's config instead of the tensor, and export again; or gather";
    } else if (kind == SizeConflict::Kind::kTerms) {
      out = "reduce the tensor before the node, at the output of a module: output = { partial, replicate }; or gather";
    } else if (kind == SizeConflict::Kind::kLate) {
      out = "change the result in the module that calls the linear layer; or do not shard the layer";
      return out + ": replicated {}, at " + Quote(PathOf(origin->module));
    } else if (kind == SizeConflict::Kind::kOperands) {
      out = branches ? "return the same layout from both branches; or gather"
                     : "give both operands the same layout; or gather";
    } else if (kind == SizeConflict::Kind::kInteger && origin->kind == ShardOrigin::Kind::kParameter) {
      out = "read the size from the tensor in the model's code, and export the program with --cut " + cut(*origin);
      if (other != nullptr && other->kind == ShardOrigin::Kind::kParameter && cut(*other) != cut(*origin))
        out += " " + cut(*other);
      out += ", so that the size follows the shard; or gather";
    } else {
      out = "gather";
    }
    const std::string& path = PathOf(origin->module);
    return out + " the tensor: output = replicate, or replicated {}, at " + Quote(path.empty() ? "the model" : path);
  }

  Diagnostic OfSize(const SizeConflict& one) const {
    const ShardOrigin* origin = Origin(one.origin);
    const ShardOrigin* other = Origin(one.other_origin);
    const bool flow = one.kind == SizeConflict::Kind::kOperands || one.kind == SizeConflict::Kind::kTerms ||
                      one.kind == SizeConflict::Kind::kLate;
    std::string message = NodeText(one.node) + " of " + (one.module.empty() ? "the model" : Quote(one.module)) +
                          " is not valid for the local tensors of a rank: " + one.message;
    if (one.integer_at >= 0 && static_cast<uint32_t>(one.integer_at) != one.node) {
      message += "; the size is written in " + NodeText(static_cast<uint32_t>(one.integer_at));
    }
    Diagnostic d =
        MakeDiagnostic(flow ? Finding::kFlowDoesNotFit : Finding::kFixedSize, std::move(message), LineOf(origin));
    d.path = one.module;
    const bool chooses = program_.graph.nodes[one.node].kind == ProgramNode::Kind::kBranch;
    switch (one.kind) {
      case SizeConflict::Kind::kInteger:
        d.declared = NumberText(one.declared) + ", an integer of the program that is valid only for the full size";
        break;
      case SizeConflict::Kind::kCrossesShards: d.declared = "a part of the full dim"; break;
      case SizeConflict::Kind::kNeedsFullDim: d.declared = "all elements of the dim"; break;
      case SizeConflict::Kind::kFollowsShard:
        d.declared =
            chooses ? "a predicate of the size of a shard" : NumberText(one.declared) + ", the size of a shard";
        break;
      case SizeConflict::Kind::kComputed:
        d.declared = NumberText(one.declared) + ", computed from the size of a shard";
        break;
      case SizeConflict::Kind::kOperands: d.declared = NumberText(one.declared); break;
      case SizeConflict::Kind::kTerms: d.declared = "a partial tensor"; break;
      case SizeConflict::Kind::kLate: d.declared = "added once, after output 0 of the module is reduced"; break;
    }
    if (other != nullptr) d.declared += (one.kind == SizeConflict::Kind::kInteger ? "; " : ", because ") + Text(*other);
    d.required = one.kind == SizeConflict::Kind::kCrossesShards
                     ? "the full dim on every rank, or packed shards of its parts"
                 : one.kind == SizeConflict::Kind::kNeedsFullDim ? "the full dim on every rank"
                 : one.kind == SizeConflict::Kind::kTerms        ? "the reduced tensor"
                 : one.kind == SizeConflict::Kind::kLate
                     ? "output 0 of the module as the linear layer computes it, with the parameter as its bias"
                 : chooses      ? "the same predicate as in the full model"
                 : one.required ? NumberText(one.required)
                                : "the number of the full model";
    if (origin != nullptr) {
      const bool full = one.kind == SizeConflict::Kind::kCrossesShards ||
                        one.kind == SizeConflict::Kind::kNeedsFullDim ||
                        one.kind == SizeConflict::Kind::kFollowsShard || one.kind == SizeConflict::Kind::kComputed;
      if (one.kind == SizeConflict::Kind::kLate) {
        d.declared = Quote(plan_.tree->PathOf({origin->module, origin->index})) + ", " + d.declared;
      } else {
        (one.kind == SizeConflict::Kind::kTerms ? d.declared : d.required) +=
            (full ? "; " : ", because ") + Text(*origin);
      }
    }
    d.help = Fix(one.kind, program_.graph.nodes[one.node].kind == ProgramNode::Kind::kJoin, origin, other);
    const SourceSpan second = LineOf(other);
    if (second.known() && !(second == d.where)) d.related.push_back(second);
    if (one.of_loss && warns_of_loss_) {
      d.severity = Severity::kWarning;
      d.help =
          "if this loss is the cross-entropy of the next tokens, eval, verify and train compute it from the sharded "
          "logits instead; else " +
          d.help;
    }
    return d;
  }

  Diagnostic OfGuard(const GuardConflict& one) const {
    const SizeGuard& guard = program_.guards[one.guard];
    const ShardOrigin* origin = Origin(one.origin);
    Diagnostic d = MakeDiagnostic(Finding::kProgramGuard,
                                  "the program is valid only if " + guard.text +
                                      (guard.place.empty() ? "" : " (" + guard.place + ")") +
                                      ", which does not hold for the sizes of a rank's shards",
                                  LineOf(origin));
    if (origin != nullptr) d.declared = Text(*origin);
    d.required = "sizes of shards for which the condition holds";
    d.help = Fix(SizeConflict::Kind::kFollowsShard, false, origin, nullptr);
    return d;
  }

  Diagnostic OfBoundary(const BoundaryConflict& one) const {
    const ModuleLayouts& layouts = plan_.LayoutsOf(one.module);
    const bool terms = one.kind == BoundaryConflict::Kind::kTerms;
    const bool declared = one.position < layouts.outputs.size() && layouts.outputs[one.position];
    if (PathOf(one.module).empty() && terms && !declared) return OfOutput(one);
    const ShardOrigin* origin = Origin(one.origin);
    const std::string place = (one.input ? "input " : "output ") + std::to_string(one.position) + " of " +
                              (PathOf(one.module).empty() ? "the model" : Quote(PathOf(one.module)));
    const auto& redistribution = one.input ? layouts.inputs[one.position] : layouts.outputs[one.position];
    const std::string layout = redistribution->from[conflicts_.axis].ToString();
    const std::string is = place + (one.input ? " arrives" : " is computed");
    const std::string differs = ", but is declared to be " + layout;
    const std::string size = Size(one.local, one.full) + " on a rank";
    std::string message;
    std::string required;
    switch (one.kind) {
      case BoundaryConflict::Kind::kSizes:
        message = is + " with " + Size(one.local, one.full) + " elements along dim " + std::to_string(one.dim) +
                  " on each rank" + differs;
        required = size;
        break;
      case BoundaryConflict::Kind::kElements:
        message = is + " with other elements along dim " + std::to_string(one.dim) + " on a rank: " +
                  (one.parts == 1 ? "the dim is sharded as a whole"
                                  : "the dim has " + std::to_string(one.parts) + " parts, each sharded by itself") +
                  differs;
        required = one.parts == 1 ? "shard(" + std::to_string(one.dim) + ")" : "packed shards of these parts";
        break;
      case BoundaryConflict::Kind::kTerms:
        message = is + " as partial" + differs +
                  (one.node < 0 ? "" : ": " + NodeText(static_cast<uint32_t>(one.node)) + " makes the tensor partial");
        required = "partial";
        break;
      case BoundaryConflict::Kind::kFull:
        message =
            is + " in full, equal on every rank" + differs + ": the sum over the ranks would have it once per rank";
        required = "replicate";
        break;
    }
    Diagnostic d = MakeDiagnostic(Finding::kFlowDoesNotFit, std::move(message), SourceOf(plan_, layouts));
    d.path = PathOf(one.module);
    d.declared =
        layout + (one.kind == BoundaryConflict::Kind::kSizes ? ": " + Size(one.declared, one.full) + " on a rank" : "");
    d.required = std::move(required);
    if (origin != nullptr) d.required += ", because " + Text(*origin);
    d.help =
        one.input
            ? "declare the layout in which the input arrives, or change the module that outputs the tensor so that "
              "the output leaves as " +
                  layout
            : "declare the layout in which the forward computes the output";
    const SourceSpan second = LineOf(origin);
    if (second.known() && !(second == d.where)) d.related.push_back(second);
    return d;
  }

  // Of the program.
  Diagnostic OfOutput(const BoundaryConflict& one) const {
    Diagnostic d = MakeDiagnostic(Finding::kFlowDoesNotFit,
                                  "output " + Quote(program_.outputs[one.position].name) +
                                      " of the program depends on a partial tensor that is not reduced over the ranks");
    const ShardOrigin* origin = Origin(one.origin);
    d.where = LineOf(origin);
    if (one.node >= 0) d.message += ": " + NodeText(static_cast<uint32_t>(one.node)) + " computes the partial tensor";
    if (origin != nullptr) d.declared = Text(*origin);
    d.required =
        "a module that computes the partial tensor and declares output = { partial, replicate } or { partial, "
        "shard(dim) }";
    d.help =
        "declare the output of the module that computes the partial tensor, or gather the tensor that is summed: "
        "output = replicate";
    return d;
  }

  static std::string Size(int64_t local, int64_t full) {
    return local == full ? "all " + std::to_string(full) : std::to_string(local) + " of " + std::to_string(full);
  }

  const SizeConflicts& conflicts_;
  const ExportedProgram& program_;
  const CompiledPlan& plan_;
  bool warns_of_loss_ = false;
  Diagnostics out_;
  std::vector<int64_t> counts_;  // parallel
  std::map<std::string, size_t> index_;
};

// A call that is given one tensor for two arguments has it once in the graph, so it is redistributed once, and both
// arguments are that.
void AddRepeatedArguments(const ExportedProgram& program, const CompiledPlan& plan, Diagnostics& found) {
  std::set<std::string> reported;
  for (const RecordedCall& call : program.calls) {
    const int64_t module = plan.tree->Find(call.module);
    if (module < 0) continue;
    const ModuleLayouts& layouts = plan.LayoutsOf(static_cast<size_t>(module));
    const auto of = [&](uint32_t position) {
      const auto input = position < layouts.inputs.size() ? layouts.inputs[position] : std::nullopt;
      return input && input->from == input->to ? std::nullopt : input;
    };
    std::map<uint32_t, uint32_t> first;
    for (const RecordedCall::Place& place : call.arguments) {
      const auto [known, fresh] = first.try_emplace(place.value, place.position);
      if (fresh || of(known->second) == of(place.position) || !reported.insert(PathClassOf(call.module)).second)
        continue;
      Diagnostic d =
          MakeDiagnostic(Finding::kFlowDoesNotFit,
                         "inputs " + std::to_string(known->second) + " and " + std::to_string(place.position) + " of " +
                             Quote(call.module) + " are the same tensor, but are redistributed differently",
                         SourceOf(plan, layouts));
      const auto text = [&](uint32_t position) {
        const auto input = of(position);
        return input ? input->from.ToText() + " -> " + input->to.ToText() : std::string("no redistribution");
      };
      d.path = call.module;
      d.declared = text(known->second) + ", and " + text(place.position);
      d.required = "the same redistribution for both inputs";
      d.help =
          "declare the redistribution at the module that outputs the tensor, or export a model that passes a copy of "
          "the tensor as one of the two inputs";
      found.push_back(std::move(d));
    }
  }
}

// A call whose nodes are not contiguous (CallTree::torn) runs as a part of the call around it, so nothing of it is
// redistributed.
void AddTornCalls(const ExportedProgram& program, const CompiledPlan& plan, Diagnostics& found) {
  std::set<std::string> reported;
  for (const std::string& call : program::FindCalls(program).torn) {
    const std::string path = call.substr(0, call.rfind('@'));
    const int64_t module = plan.tree->Find(path);
    if (module < 0) continue;
    const ModuleLayouts& layouts = plan.LayoutsOf(static_cast<size_t>(module));
    const auto redistributes = [](const auto& one) { return one && one->from != one->to; };
    if (std::ranges::none_of(layouts.inputs, redistributes) && std::ranges::none_of(layouts.outputs, redistributes)) {
      continue;
    }
    if (!reported.insert(PathClassOf(path)).second) continue;
    Diagnostic d = MakeDiagnostic(
        Finding::kFlowDoesNotFit,
        "the operators of a call of " + Quote(path) +
            " are not contiguous in the graph, so the inputs and outputs of the call are not redistributed",
        SourceOf(plan, layouts));
    d.path = path;
    d.required = "a rule without redistribution, or a call whose operators are contiguous";
    d.help = "declare the redistributions at the module that calls " + Quote(path) + ", or at the modules inside it";
    found.push_back(std::move(d));
  }
}

// The modules that are called in branches.
std::set<std::string> CalledInBranches(const ExportedProgram& program) {
  std::set<std::string> out;
  std::vector<int32_t> around;  // stacks of the open kBranch nodes
  for (const ProgramNode& node : program.graph.nodes) {
    if (node.kind == ProgramNode::Kind::kJoin) around.pop_back();
    if (!around.empty() && node.stack >= 0) {
      const size_t outside = around.front() < 0 ? 0 : program.stacks[static_cast<size_t>(around.front())].size();
      const std::vector<ModuleCall>& stack = program.stacks[static_cast<size_t>(node.stack)];
      for (size_t i = outside; i < stack.size(); ++i) out.insert(stack[i].path);
    }
    if (node.kind == ProgramNode::Kind::kBranch) around.push_back(node.stack);
  }
  return out;
}

// Data-parallel ranks have other rows and may run other branches, but all of them must gather a unit.
void AddUnitsInBranches(const ExportedProgram& program, const CompiledPlan& plan, Diagnostics& found) {
  if (plan.unit_settings.ranks == 1) return;
  const std::set<std::string> called = CalledInBranches(program);
  std::set<std::string> reported;
  for (const ShardedUnit& unit : plan.units) {
    if (!called.contains(unit.path) || !reported.insert(PathClassOf(unit.path)).second) continue;
    Diagnostic d = MakeDiagnostic(
        Finding::kNotSupported,
        Quote(unit.path) + " is a unit of fsdp and is called in a branch of torch.cond, which not every rank may run",
        plan.plan->data_parallel ? plan.plan->data_parallel->source : SourceSpan());
    d.path = unit.path;
    d.declared = "a unit, whose parameters all data-parallel ranks gather when it is called";
    d.required = "units that every rank calls in every step";
    d.help = "make the module around the branches the unit instead of " + Quote(unit.path);
    found.push_back(std::move(d));
  }
}

}  // namespace

Diagnostics ToDiagnostics(const SizeConflicts& conflicts, const ExportedProgram& program, const CompiledPlan& plan,
                          LossBy loss) {
  return Reporter(conflicts, program, plan, loss).Report();
}

namespace {

// Operators whose results are not followed.
void AddUnchecked(const std::map<std::string, int64_t>& unchecked, Diagnostics& found) {
  for (const auto& [name, count] : unchecked) {
    Diagnostic d = MakeDiagnostic(Finding::kNotSupported,
                                  "the results of '" + name + "' on sharded or partial tensors (" +
                                      std::to_string(count) + (count == 1 ? " node" : " nodes") +
                                      ") are not followed, so the plan is not checked from there to the next module "
                                      "with declared layouts");
    d.severity = Severity::kWarning;
    d.help =
        "compare the numbers with verify; or gather the tensor in front of the operator: output = replicate at the "
        "module that makes it";
    found.push_back(std::move(d));
  }
}

// A note and no warning: what is not known is mostly right.
void AddUnknownGradients(const std::vector<std::string>& paths, Diagnostics& found) {
  constexpr size_t kListed = 3;
  if (paths.empty()) return;
  const std::vector<std::string> listed(paths.begin(),
                                        paths.begin() + static_cast<ptrdiff_t>(std::min(paths.size(), kListed)));
  Diagnostic d = MakeDiagnostic(
      Finding::kNotSupported,
      "the gradients of " + std::to_string(paths.size()) + (paths.size() == 1 ? " parameter" : " parameters") +
          " are not followed, so the plan is not checked for them: " + Join(listed, ", ") +
          (paths.size() > kListed ? " and " + std::to_string(paths.size() - kListed) + " more" : ""));
  d.severity = Severity::kNote;
  d.help = "compare the gradients with verify";
  found.push_back(std::move(d));
}

std::string Summary(int64_t nodes, const std::map<std::string, int64_t>& unknown) {
  std::string out = std::to_string(nodes) + " nodes";
  for (const auto& [name, count] : unknown) {
    out += (out.ends_with(" nodes") ? "; unknown results: " : ", ") + name + " (" + std::to_string(count) + ")";
  }
  return out;
}

// Whether an argument is the value, or a list that contains it.
bool Names(const ProgramArgument& argument, int64_t value) {
  if (argument.kind == ProgramArgument::Kind::kValue) return argument.value == value;
  return std::ranges::any_of(argument.elements, [&](const ProgramArgument& one) { return Names(one, value); });
}

// Why the program cannot compute the module at `path` with an adapter; "": it can. The term is added to the result of
// aten::linear in a call of the module, so that nothing else may read the weight.
std::string WhyNotAdapted(const ExportedProgram& program, const std::set<std::string>& torn, const std::string& path) {
  const auto weight = std::ranges::find(program.tensors, path + ".weight", &ProgramTensor::name);
  if (weight == program.tensors.end()) return "the program has no tensor " + Quote(path + ".weight");
  const auto index = static_cast<int32_t>(weight - program.tensors.begin());
  for (const ProgramTensor& other : program.tensors) {
    const bool tied =
        &other != &*weight && (other.tied_to == index || weight->tied_to == &other - program.tensors.data());
    if (tied) return "its weight is tied to " + Quote(other.name);
  }
  if (torn.contains(path)) return "the operators of a call of it are not contiguous in the graph";
  bool multiplies = false;
  for (const ProgramNode& node : program.graph.nodes) {
    if (node.target == "aten::sym_size") continue;  // reads a size, and no values
    for (const auto& [name, argument] : node.inputs) {
      if (weight->value < 0 || !Names(argument, weight->value)) continue;
      const std::vector<ModuleCall> none;
      const std::vector<ModuleCall>& stack = node.stack < 0 ? none : program.stacks[static_cast<size_t>(node.stack)];
      const bool own = !stack.empty() && stack.back().path == path;
      if (node.target != "aten::linear" || name != "weight" || !own) {
        return "node " + Quote(node.name) + " (" + node.target + (node.place.empty() ? "" : ", " + node.place) + ")" +
               (own ? "" : " of " + (stack.empty() ? "the model" : Quote(stack.back().path))) + " uses its weight";
      }
      multiplies = true;
    }
  }
  return multiplies ? "" : "no operator of the graph uses its weight";
}

void AddAdapters(const ExportedProgram& program, const CompiledPlan& plan, Diagnostics& found) {
  std::set<std::string> torn;
  for (const std::string& call : program::FindCalls(program).torn) torn.insert(call.substr(0, call.rfind('@')));
  std::set<std::string> reported;
  for (const auto& [path, section] : plan.adapted) {
    const std::string why = WhyNotAdapted(program, torn, path);
    if (why.empty() || !reported.insert(PathClassOf(path)).second) continue;
    const Adapter& adapter = plan.plan->adapters[static_cast<size_t>(section)];
    Diagnostic d =
        MakeDiagnostic(Finding::kNotSupported, "the program cannot compute " + Quote(path) + " with an adapter: " + why,
                       adapter.source);
    d.path = path;
    d.declared = ToText(adapter);
    d.required = "a module whose weight is the weight of aten::linear in its own calls, and nothing else";
    d.help = "leave the module out of the section lora; or export the model with its adapters (PEFT) as modules";
    found.push_back(std::move(d));
  }
}

// The operators of the experts have sizes of the batch in them, which is another one behind an exchange of tokens.
void AddExchange(const CompiledPlan& plan, Diagnostics& found) {
  Diagnostic d =
      MakeDiagnostic(Finding::kNotSupported, "the tokens of an exported program cannot be sent to experts on ep");
  d.declared = "ep=" + std::to_string(plan.mesh.size(MeshAxis::kEp)) + " and a plan with parallel = \"exchange\"";
  d.required = "a model in C++, or a mesh without ep";
  found.push_back(std::move(d));
}

// The first module that declares ring attention; -1: none.
int64_t RingOf(const CompiledPlan& plan) {
  const auto found = std::ranges::find_if(plan.layouts, [](const ModuleLayouts& one) { return one.ring.has_value(); });
  return found == plan.layouts.end() ? -1 : found - plan.layouts.begin();
}

// A ring computes attention in place of the model's operators, and the heads of a layout on cp are those that tp
// leaves.
void AddUnsupportedContext(const CompiledPlan& plan, int64_t ring, Diagnostics& found) {
  Diagnostic d = MakeDiagnostic(Finding::kNotSupported,
                                ring >= 0 ? "the attention of an exported program cannot be computed as a ring"
                                          : "an exported program cannot be sharded on cp and tp at once");
  const bool factors = plan.mesh.cp_heads() > 1;
  d.declared = factors ? plan.mesh.ToString() : "cp=" + std::to_string(plan.mesh.size(MeshAxis::kCp));
  if (ring >= 0) {
    d.path = plan.tree->modules()[static_cast<size_t>(ring)].path;
    d.where = SourceOf(plan, plan.layouts[static_cast<size_t>(ring)]);
    d.declared += " and a ring";
    d.required = std::string("context = \"ulysses\"") + (factors ? ", on a mesh with one number for cp" : "") +
                 ", or a model in C++";
  } else {
    d.declared += ",tp=" + std::to_string(plan.mesh.size(MeshAxis::kTp)) + " and a plan that shards the sequence on cp";
    d.required = "a mesh with one of the two, or a model in C++";
  }
  found.push_back(std::move(d));
}

// Adds the findings of one archive's graph. Returns a summary: numbers of nodes and of unknown results.
std::string CheckGraph(const ExportedProgram& program, const CompiledPlan& plan, LossBy loss, const TrialsOf& trials,
                       Diagnostics& found) {
  if (!plan.adapted.empty()) AddAdapters(program, plan, found);
  AddUnitsInBranches(program, plan, found);
  if (plan.exchanges_tokens()) {
    AddExchange(plan, found);
    return "not run: the plan sends tokens to experts on ep";
  }
  if (plan.context_parallel && (RingOf(plan) >= 0 || plan.mesh.size(MeshAxis::kTp) > 1)) {
    AddUnsupportedContext(plan, RingOf(plan), found);
    return "not run: the plan shards the sequence on cp";
  }
  const std::optional<MeshAxis> axis = FollowedAxis(plan);
  if (!axis) return "not run: tp has one rank";
  const SizeConflicts conflicts = FindSizeConflicts(program, plan, *axis);
  for (Diagnostic& one : ToDiagnostics(conflicts, program, plan, loss)) found.push_back(std::move(one));
  AddRepeatedArguments(program, plan, found);
  AddTornCalls(program, plan, found);
  if (!trials || HasErrors(found)) {
    AddUnchecked(conflicts.unchecked, found);
    return Summary(conflicts.nodes, conflicts.unknown);
  }
  const bool with_loss = loss == LossBy::kProgram || !conflicts.plain_loss || !IsCausalLm(program);
  ProgramTrials made = trials(program, plan, *axis, with_loss);
  for (Diagnostic& one : made.errors) found.push_back(std::move(one));
  // What a rule leaves unknown on purpose (the look-ups of a rank's experts) is not reported.
  std::erase_if(made.unknown, [&](const auto& one) {
    return conflicts.unknown.contains(one.first) && !conflicts.unchecked.contains(one.first);
  });
  AddUnchecked(made.unknown, found);
  AddUnknownGradients(made.unknown_gradients, found);
  return Summary(conflicts.nodes, made.unknown) + "; " + std::to_string(made.tried) + " tried on made-up tensors" +
         (made.large == 0 ? "" : ", " + std::to_string(made.large) + " too large to try") +
         (made.unknown_gradients.empty()
              ? ""
              : "; gradients of " + std::to_string(made.unknown_gradients.size()) + " parameters not known");
}

}  // namespace

void AddProgramKnowledge(ModuleTree& tree, std::shared_ptr<const ExportedProgram> program, LossBy loss,
                         TrialsOf trials) {
  tree.SetFlow(std::make_shared<const DataFlow>(DataFlowOf(*program)));
  tree.AddCheck({"sizes", [program = std::move(program), loss, trials = std::move(trials)](const CompiledPlan& plan,
                                                                                           Diagnostics& found) {
                   std::string made = CheckGraph(*program, plan, loss, trials, found);
                   for (const auto& other : program->others) {
                     Diagnostics more;
                     const std::string of_other = CheckGraph(*other, plan, loss, trials, more);
                     if (FollowedAxis(plan)) made += "; " + of_other;
                     for (Diagnostic& one : more) {
                       const auto same = [&](const Diagnostic& known) {
                         return known.path == one.path && known.message == one.message;
                       };
                       if (std::ranges::none_of(found, same)) found.push_back(std::move(one));
                     }
                   }
                   return made;
                 }});
}

}  // namespace moonshard
