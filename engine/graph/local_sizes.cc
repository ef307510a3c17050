// The calls of modules are walked as the program runs them (call_tree.h), with one table of sizes for all values. A
// redistribution of an argument holds inside of the call alone, so what it replaces is put back when the call ends; one
// of a result stays. Where a plan declares what arrives at a boundary, or is made there, the declaration holds from
// there on, so that one wrong line gives one finding.
#include "engine/graph/local_sizes.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "engine/graph/added_after.h"
#include "engine/graph/call_tree.h"
#include "engine/graph/data_sizes.h"
#include "engine/graph/followed_axis.h"
#include "engine/graph/node_uses.h"
#include "engine/graph/plain_loss.h"
#include "engine/graph/size_rules/dims.h"
#include "engine/graph/size_rules/late_parameters.h"
#include "engine/graph/size_rules/local_number.h"
#include "engine/graph/size_rules/node_sizes.h"
#include "engine/graph/size_rules/operand_checks.h"
#include "engine/graph/size_rules/partial_sums.h"
#include "engine/graph/size_rules/size_rules.h"
#include "engine/layout/shards.h"

namespace moonshard {
namespace {

using graph::LocalNumber;
using graph::LocalTensor;
using graph::NodeSizes;
using graph::NumberValue;
using program::CallNode;
using program::CallTree;

// Whether products of two of the sizes, and of any of them with a number of parts, are numbers. What an archive claims
// beyond that is no tensor that exists, and its sizes are not followed.
bool IsCountable(const std::vector<int64_t>& sizes) {
  constexpr int64_t kMostElements = int64_t{1} << 50;
  int64_t elements = 1;
  for (const int64_t size : sizes) {
    if (size < 0 || size > graph::kLargestSize) return false;
    if (__builtin_mul_overflow(elements, std::max<int64_t>(size, 1), &elements)) return false;
  }
  return elements <= kMostElements;
}

class Walk {
 public:
  // The sizes on the rank with coordinate `rank` on the axis.
  Walk(const ExportedProgram& steps, const CompiledPlan& plan, MeshAxis axis, int64_t rank = 0)
      : steps_(steps),
        plan_(plan),
        axis_(axis),
        calls_(program::FindCalls(steps)),
        rank_(rank),
        late_(AddedAfterOf(steps, plan)),
        uses_(NodeUsesOf(steps)) {
    tensors_.resize(steps.values.size());
    numbers_.resize(steps.values.size());
    seen_.resize(steps.values.size());
    for (const RecordedCall& call : steps.calls) recorded_.emplace(std::pair(call.module, call.occurrence), &call);
    ranks_ = plan.mesh.size(axis);
    out_.axis = axis;
    routes_ = std::ranges::any_of(plan.layouts, [](const ModuleLayouts& one) { return one.route.has_value(); });
    base_.resize(steps.values.size(), kNoBase);
    made_.resize(steps.values.size());
  }

  void Run() {
    for (const ProgramInput& input : steps_.inputs) {
      if (input.value >= 0) SetFull(static_cast<uint32_t>(input.value));
    }
    for (const ProgramTensor& tensor : steps_.tensors) {
      if (tensor.value >= 0) SetParameter(tensor);
    }
    for (uint32_t i = 0; i < steps_.inputs.size(); ++i) {
      const Redistribution* declared = OfRoot(i, /*input=*/true);
      const int64_t value = steps_.inputs[i].value;
      if (declared == nullptr || value < 0) continue;
      const ShardOrigin origin{ShardOrigin::Kind::kInput, static_cast<uint32_t>(plan_.tree->Find("")), i, 0};
      const std::vector<int64_t>& sizes = steps_.values[static_cast<size_t>(value)].sizes;
      std::optional<LocalTensor> made = Under(sizes, declared->to[axis_], origin);
      tensors_[static_cast<size_t>(value)] = made ? *std::move(made) : LocalTensor();
    }
    CheckGuards();
    RunItems(calls_.calls.front());
    out_.plain_loss = true;
    for (size_t i = 0; i < uses_.size(); ++i) {
      if (uses_[i] == NodeUse::kLoss && !IsOfPlainLoss(steps_.graph.nodes[i])) out_.plain_loss = false;
    }
    const int64_t root = plan_.tree->Find("");
    for (uint32_t i = 0; i < steps_.graph.outputs.size(); ++i) {
      const ProgramArgument& output = steps_.graph.outputs[i];
      if (output.kind != ProgramArgument::Kind::kValue || root < 0 || !tensors_[output.value].known) continue;
      if (const Redistribution* declared = OfRoot(i, /*input=*/false)) {
        const Layout& from = declared->from[axis_];
        const ShardOrigin origin{ShardOrigin::Kind::kOutput, static_cast<uint32_t>(root), i, 0};
        const std::optional<LocalTensor> made = Under(steps_.values[output.value].sizes, from, origin);
        if (made) Compare(tensors_[output.value], *made, from, i, static_cast<uint32_t>(root), /*input=*/false);
        continue;
      }
      if (!tensors_[output.value].terms) continue;
      BoundaryConflict conflict;
      conflict.module = static_cast<uint32_t>(root);
      conflict.input = false;
      conflict.position = i;
      conflict.kind = BoundaryConflict::Kind::kTerms;
      conflict.node = tensors_[output.value].terms_at;
      conflict.origin = tensors_[output.value].terms_origin;
      out_.boundaries.push_back(conflict);
    }
  }

  // The layouts of the graph's outputs, after Run.
  std::vector<std::optional<Layout>> OutputLayouts() {
    std::vector<std::optional<Layout>> out;
    for (uint32_t i = 0; i < steps_.graph.outputs.size(); ++i) {
      const ProgramArgument& output = steps_.graph.outputs[i];
      const bool tensor = output.kind == ProgramArgument::Kind::kValue && tensors_[output.value].known;
      if (const Redistribution* declared = OfRoot(i, /*input=*/false)) {
        out.emplace_back(declared->to[axis_]);
      } else {
        out.push_back(tensor ? LayoutOf(tensors_[output.value], steps_.values[output.value].varies) : std::nullopt);
      }
    }
    return out;
  }

  std::vector<LocalValue> made() const {
    std::vector<LocalValue> out(made_.size());
    for (size_t i = 0; i < made_.size() && !is_uneven_; ++i) out[i] = {made_[i].known, made_[i].terms, made_[i].dims};
    return out;
  }

  // Whether the last rank has a shard of another length than the first.
  bool is_uneven() const { return is_uneven_; }
  int64_t last_rank() const { return ranks_ - 1; }

  SizeConflicts conflicts() && { return std::move(out_); }

 private:
  // What the plan declares of an input or output of the model itself; nullptr: nothing.
  const Redistribution* OfRoot(uint32_t position, bool input) const {
    const int64_t root = plan_.tree->Find("");
    if (root < 0) return nullptr;
    const ModuleLayouts& layouts = plan_.LayoutsOf(static_cast<size_t>(root));
    const auto& moves = input ? layouts.inputs : layouts.outputs;
    return position < moves.size() && moves[position] ? &*moves[position] : nullptr;
  }

  // A sharded dim has the layout of its origin, with heads and parts, if that layout gives its sizes. Equal shards of a
  // dim without parts are plain shards, and equal shards of the parts of a dim packed ones.
  std::optional<Layout> LayoutOf(const LocalTensor& tensor, const std::vector<bool>& varies) {
    std::optional<size_t> sharded;
    for (size_t i = 0; i < tensor.dims.size(); ++i) {
      if (!tensor.dims[i].is_sharded()) continue;
      if (sharded || tensor.terms || !tensor.dims[i].in_order) return std::nullopt;
      sharded = i;
    }
    if (!sharded) return tensor.terms ? Layout::Partial() : Layout::Replicate();
    const LocalDim& dim = tensor.dims[*sharded];
    if (dim.origin >= 0) {
      Layout layout = LayoutAt(out_.origins[static_cast<size_t>(dim.origin)]);
      layout.dim = static_cast<int>(*sharded);
      if (Gives(layout, dim)) return layout.Sized(dim.full);
    }
    Layout plain = Layout::Shard(static_cast<int>(*sharded));
    if (dim.parts.empty() && dim.local * ranks_ == dim.full) return plain;
    // The parts of a dim whose size depends on the input have the sizes of the example.
    const bool fixed = *sharded < varies.size() && !varies[*sharded];
    if (dim.parts.empty() || !fixed) return std::nullopt;
    std::vector<Layout::Part> parts;
    for (const LocalDim::Part& part : dim.parts) {
      if (part.local * ranks_ != part.full) return std::nullopt;
      parts.push_back({part.full, 0});
    }
    return Layout::Packed(static_cast<int>(*sharded), std::move(parts));
  }

  Layout LayoutAt(const ShardOrigin& origin) const {
    const ModuleLayouts& layouts = plan_.LayoutsOf(origin.module);
    if (origin.kind == ShardOrigin::Kind::kParameter) return FollowedParameter(layouts, origin.index, axis_);
    const auto& moves = origin.kind == ShardOrigin::Kind::kInput ? layouts.inputs : layouts.outputs;
    return moves[origin.index]->to[axis_];
  }

  // Whether the layout shards the dim into these sizes and parts.
  bool Gives(const Layout& layout, const LocalDim& dim) {
    const std::optional<LocalDim> made = DimUnder(layout, dim.full);
    return made && made->local == dim.local && made->parts == dim.parts;
  }

  // A dim of `full` elements under a shard; nothing where the layout does not fit it.
  std::optional<LocalDim> DimUnder(const Layout& layout, int64_t full) {
    if (!layout.is_shard() || layout.owner >= 0) return std::nullopt;
    const Layout sized = layout.has_equal_parts() ? layout.Sized(full) : layout;
    const Result<DimShards> shards = DimShards::Make(sized, full, ranks_);
    if (!shards.ok()) return std::nullopt;
    LocalDim out;
    out.full = full;
    out.local = shards.value().length(rank_);
    is_uneven_ = is_uneven_ || shards.value().length(0) != shards.value().length(last_rank());
    for (const Layout::Part& part : sized.parts) {
      const Result<DimShards> own = DimShards::Make(Layout::Shard(0, part.heads), part.size, ranks_);
      if (!own.ok()) return std::nullopt;
      out.parts.push_back({part.size, own.value().length(rank_)});
    }
    return out;
  }

  void SetFull(uint32_t value) {
    const ProgramValue& meta = steps_.values[value];
    if (meta.kind != ProgramValue::Kind::kTensor || !IsCountable(meta.sizes)) return;
    LocalTensor& tensor = tensors_[value];
    tensor = {true};
    for (const int64_t size : meta.sizes) {
      LocalDim& dim = tensor.dims.emplace_back();
      dim.full = dim.local = size;
    }
  }

  int32_t Origin(ShardOrigin origin) {
    const auto key = std::tuple(static_cast<int>(origin.kind), origin.module, origin.index, origin.dim);
    const auto [found, fresh] = origin_of_.try_emplace(key, static_cast<int32_t>(out_.origins.size()));
    if (fresh) out_.origins.push_back(origin);
    return found->second;
  }

  // The dims of a tensor of these full sizes under a layout along tp; nothing where the layout does not fit them.
  std::optional<LocalTensor> Under(const std::vector<int64_t>& sizes, const Layout& layout, ShardOrigin origin) {
    if (!IsCountable(sizes)) return std::nullopt;
    LocalTensor out{true, layout.kind == LayoutKind::kPartial};
    for (const int64_t size : sizes) {
      origin.dim = static_cast<int64_t>(out.dims.size());
      LocalDim& dim = out.dims.emplace_back();
      dim.full = dim.local = size;
      dim.origin = Origin(origin);
    }
    if (!layout.is_shard()) return out;
    const int64_t at = layout.dim < 0 ? layout.dim + static_cast<int64_t>(sizes.size()) : layout.dim;
    if (at < 0 || static_cast<size_t>(at) >= sizes.size()) return std::nullopt;
    LocalDim& dim = out.dims[static_cast<size_t>(at)];
    std::optional<LocalDim> made = DimUnder(layout, dim.full);
    if (!made) return std::nullopt;
    dim.local = made->local;
    dim.parts = std::move(made->parts);
    return out;
  }

  void SetParameter(const ProgramTensor& tensor) {
    const auto value = static_cast<uint32_t>(tensor.value);
    SetFull(value);
    ParamRef ref;
    tensors_[value].zero = tensor.is_zero && std::ranges::none_of(steps_.graph.nodes, [&](const ProgramNode& node) {
                             return std::ranges::any_of(WrittenInputs(node), [&](size_t i) {
                               const ProgramArgument& written = node.inputs[i].second;
                               return written.kind == ProgramArgument::Kind::kValue && written.value == value;
                             });
                           });
    if (tensor.kind == ProgramTensor::Kind::kConstant || !plan_.tree->FindParameter(tensor.name, &ref)) return;
    const ModuleLayouts& layouts = plan_.LayoutsOf(ref.module);
    if (ref.param >= layouts.params.size()) return;
    const Layout layout = FollowedParameter(layouts, ref.param, axis_);
    std::optional<LocalTensor> local =
        Under(tensor.shape, layout, {ShardOrigin::Kind::kParameter, ref.module, ref.param, 0});
    seen_[value] = plan_.StepsOf(ref.module).reports_full_shapes;
    tensors_[value] = local ? *std::move(local) : LocalTensor();
    tensors_[value].parameter = true;
  }

  // Which of the operator's parameters the module adds that calls it.
  void SetLate(const ProgramNode& node, const CallNode& call) {
    if (late_.empty()) return;
    const auto of_module = late_.find(static_cast<uint32_t>(plan_.tree->Find(call.module)));
    const auto set = [&](const ProgramArgument& argument, const auto& self) -> void {
      if (argument.kind == ProgramArgument::Kind::kValue) {
        tensors_[argument.value].late = of_module != late_.end() && of_module->second.contains(argument.value);
      }
      for (const ProgramArgument& element : argument.elements) self(element, self);
    };
    for (const auto& [name, argument] : node.inputs) set(argument, set);
  }

  // Output 0 of a call must lack what is added to it, and no other result may.
  void CheckLate(const CallNode& call, uint32_t module, const RecordedCall& recorded) {
    const auto added = late_.find(module);
    const auto refuse = [&](int32_t node, uint32_t value, const std::string& why) {
      SizeConflict& conflict = AddConflict(SizeConflict::Kind::kLate, static_cast<uint32_t>(node), call, why);
      conflict.parameter = static_cast<int32_t>(value);
      NoteLate(conflict);
    };
    for (const RecordedCall::Place& place : recorded.results) {
      if (std::ranges::find(call.outputs, place.value) == call.outputs.end()) continue;
      LocalTensor& made = tensors_[place.value];
      if (place.position == 0 && added != late_.end()) {
        for (const auto& [value, ref] : added->second) {
          const auto times = std::ranges::count(made.lacks, value);
          if (!made.known || times == 1 || reported_late_.contains(value)) continue;
          refuse(LastNode(call), value,
                 times == 0 ? "output 0 is computed without the parameter"
                            : "output 0 has the parameter " + std::to_string(times) + " times");
          break;
        }
        made.lacks.clear();
      } else if (!made.lacks.empty()) {
        refuse(made.lacks_at, made.lacks.front(),
               "its result is output " + std::to_string(place.position) + " of the module too");
        made.lacks.clear();
      }
    }
  }

  uint32_t LastNode(const CallNode& call) const {
    const CallNode::Item& last = call.items.back();
    return last.is_call ? LastNode(calls_.calls[last.index]) : last.index;
  }

  // Conditions on inputs are checked at each call.
  void CheckGuards() {
    std::map<std::string, uint32_t, std::less<>> value_of;
    for (const ProgramTensor& tensor : steps_.tensors) {
      if (tensor.value >= 0) value_of.emplace(tensor.name, static_cast<uint32_t>(tensor.value));
    }
    for (size_t i = 0; i < steps_.guards.size(); ++i) {
      std::set<std::string> symbols;
      steps_.guards[i].condition.AddSymbols(symbols);
      std::map<std::string, int64_t, std::less<>> local;
      int32_t origin = LocalDim::kNone;
      for (const std::string& name : symbols) {
        const auto symbol = steps_.symbols.find(name);
        if (symbol == steps_.symbols.end()) continue;
        const auto value = value_of.find(symbol->second.tensor);
        if (value == value_of.end()) continue;
        const LocalTensor& tensor = tensors_[value->second];
        const auto dim = static_cast<size_t>(symbol->second.dim);
        if (!tensor.known || dim >= tensor.dims.size()) continue;
        const LocalDim& had = tensor.dims[dim];
        local[name] = seen_[value->second] ? had.full : had.local;
        if (had.is_sharded()) origin = had.origin;
      }
      if (steps_.guards[i].condition.Evaluate(local) == 0 && origin >= 0) {
        out_.guards.push_back({static_cast<uint32_t>(i), origin});
      }
    }
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
    const ModuleLayouts& layouts = plan_.LayoutsOf(static_cast<size_t>(module));
    const RecordedCall& recorded = *found->second;
    std::vector<std::pair<uint32_t, LocalTensor>> outside;
    std::vector<uint32_t> done;
    for (const RecordedCall::Place& place : recorded.arguments) {
      if (std::ranges::find(call.inputs, place.value) == call.inputs.end()) continue;
      if (std::ranges::find(done, place.value) != done.end()) continue;
      done.push_back(place.value);
      if (place.position >= layouts.inputs.size() || !layouts.inputs[place.position]) continue;
      outside.emplace_back(place.value, tensors_[place.value]);
      Redistribute(place, *layouts.inputs[place.position], static_cast<uint32_t>(module), true);
    }
    RunItems(call);
    for (auto& [value, tensor] : outside) tensors_[value] = std::move(tensor);
    CheckLate(call, static_cast<uint32_t>(module), recorded);
    done.clear();
    for (const RecordedCall::Place& place : recorded.results) {
      if (std::ranges::find(call.outputs, place.value) == call.outputs.end()) continue;
      if (std::ranges::find(done, place.value) != done.end()) continue;
      done.push_back(place.value);
      if (place.position >= layouts.outputs.size() || !layouts.outputs[place.position]) continue;
      Redistribute(place, *layouts.outputs[place.position], static_cast<uint32_t>(module), false);
    }
  }

  void Redistribute(const RecordedCall::Place& place, const Redistribution& redistribution, uint32_t module,
                    bool input) {
    if (steps_.values[place.value].kind != ProgramValue::Kind::kTensor) return;
    LocalTensor& tensor = tensors_[place.value];
    const std::vector<int64_t>& sizes = steps_.values[place.value].sizes;
    const ShardOrigin origin{input ? ShardOrigin::Kind::kInput : ShardOrigin::Kind::kOutput, module, place.position, 0};
    const Layout& from = redistribution.from[axis_];
    if (tensor.known) {
      if (const std::optional<LocalTensor> declared = Under(sizes, from, origin)) {
        Compare(tensor, *declared, from, place.position, module, input);
      }
    }
    std::optional<LocalTensor> made = Under(sizes, redistribution.to[axis_], origin);
    if (!made) {
      tensor = {};
    } else if (!tensor.known) {
      tensor = *std::move(made);
    } else {
      // What stays as it is keeps what is known of it: which parameter made it local, and what its dims are made of.
      tensor.terms = made->terms;
      for (size_t i = 0; i < made->dims.size(); ++i) {
        if (tensor.dims[i].local != made->dims[i].local || tensor.dims[i].full != made->dims[i].full ||
            !graph::HaveSameElements(tensor.dims[i], made->dims[i])) {
          tensor.dims[i] = made->dims[i];
        } else if (tensor.dims[i].parts.empty()) {
          tensor.dims[i].parts = made->dims[i].parts;
        }
      }
    }
  }

  void Compare(const LocalTensor& is, const LocalTensor& declared, const Layout& from, uint32_t position,
               uint32_t module, bool input) {
    BoundaryConflict conflict;
    conflict.module = module;
    conflict.input = input;
    conflict.position = position;
    for (size_t i = 0; i < is.dims.size() && i < declared.dims.size(); ++i) {
      if (is.dims[i].local == declared.dims[i].local || is.dims[i].full != declared.dims[i].full) continue;
      conflict.dim = static_cast<int64_t>(i);
      conflict.full = is.dims[i].full;
      conflict.local = is.dims[i].local;
      conflict.declared = declared.dims[i].local;
      conflict.origin = is.dims[i].origin;
      out_.boundaries.push_back(conflict);
      return;
    }
    for (size_t i = 0; i < is.dims.size() && i < declared.dims.size(); ++i) {
      if (graph::HaveSameElements(is.dims[i], declared.dims[i])) continue;
      conflict.kind = BoundaryConflict::Kind::kElements;
      conflict.dim = static_cast<int64_t>(i);
      conflict.full = is.dims[i].full;
      conflict.local = conflict.declared = is.dims[i].local;
      conflict.parts = static_cast<int64_t>(std::max<size_t>(is.dims[i].parts.size(), 1));
      conflict.origin = is.dims[i].origin;
      out_.boundaries.push_back(conflict);
      return;
    }
    if (is.terms == (from.kind == LayoutKind::kPartial) || is.zero) return;
    conflict.kind = is.terms ? BoundaryConflict::Kind::kTerms : BoundaryConflict::Kind::kFull;
    if (is.terms) conflict.node = is.terms_at;
    if (is.terms) conflict.origin = is.terms_origin;
    out_.boundaries.push_back(conflict);
  }

  void RunNode(uint32_t index, const CallNode& call) {
    const ProgramNode& node = steps_.graph.nodes[index];
    if (node.kind == ProgramNode::Kind::kArithmetic) {
      RunArithmetic(node);
      return;
    }
    if (node.kind == ProgramNode::Kind::kBranch) RunPredicate(index, call);
    if (node.kind == ProgramNode::Kind::kJoin) JoinBranches(index, call);
    if (node.kind != ProgramNode::Kind::kOperator) return;
    ++out_.nodes;
    if (node.target == "aten::sym_size") {
      RunSize(node);
      return;
    }
    SetLate(node, call);
    NodeSizes sizes(steps_, index, tensors_, numbers_);
    sizes.routes = routes_;
    const bool countable = std::ranges::all_of(node.outputs, [&](uint32_t value) {
      return value == ProgramNode::kNoValue || IsCountable(steps_.values[value].sizes);
    });
    if (const graph::SizeRule rule = graph::SizeRuleOf(node.target); rule != nullptr && countable) rule(sizes);
    graph::TakeNoShardValues(sizes);
    graph::TakeLate(sizes);
    graph::TakeNoTerms(sizes);
    TakeNoReplicas(sizes);
    graph::TakeNoTwoShards(sizes);
    const bool harmless = sizes.conflict && sizes.conflict->kind == SizeConflict::Kind::kNeedsFullDim &&
                          uses_[index] == NodeUse::kNothing;
    if (sizes.conflict && !harmless) {
      sizes.conflict->module = call.module;
      NoteLate(*sizes.conflict);
      sizes.conflict->of_loss = uses_[index] == NodeUse::kLoss;
      out_.sizes.push_back(*std::move(sizes.conflict));
    }
    const bool plain = !sizes.in_conflict() && DependsOnNoShard(sizes);
    bool unknown = false;
    const bool zero = graph::MakesZeros(sizes);
    const bool partial = graph::IsLinear(node.target) && AnyTerms(sizes);
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (!sizes.HasResult(i)) continue;
      const uint32_t value = node.outputs[i];
      LocalTensor& made = sizes.results[i];
      if (sizes.in_conflict()) made = {};
      if (made.known && partial) made.terms = true;
      if (made.known && !Fits(made, value)) made = {};
      if (made.known) {
        if (made.terms) NoteTerms(sizes, made);
        tensors_[value] = std::move(made);
        tensors_[value].zero = zero;
      } else if (plain) {
        std::vector<uint32_t> lacks = std::move(made.lacks);
        SetFull(value);
        tensors_[value].zero = zero;
        tensors_[value].lacks = std::move(lacks);
        tensors_[value].lacks_at = made.lacks_at;
      } else {
        tensors_[value] = {};
        unknown = true;
      }
    }
    for (const uint32_t value : node.outputs) {
      if (value != ProgramNode::kNoValue && tensors_[value].known) made_[value] = tensors_[value];
    }
    NoteMemory(index, call);
    if (!unknown || sizes.in_conflict() || !sizes.Tensors()) return;
    ++out_.unknown[node.target];
    if (!sizes.of_local_experts && uses_[index] != NodeUse::kNothing) ++out_.unchecked[node.target];
  }

  static constexpr uint32_t kNoBase = UINT32_MAX;

  uint32_t BaseOf(uint32_t value) const {
    while (base_[value] != kNoBase) value = base_[value];
    return value;
  }

  // Which tensor a view shows, and what a write through it does to that tensor.
  void NoteMemory(uint32_t index, const CallNode& call) {
    static const std::set<std::string_view> kViews = {"aten::view",
                                                      "aten::reshape",
                                                      "aten::slice",
                                                      "aten::narrow",
                                                      "aten::select",
                                                      "aten::transpose",
                                                      "aten::permute",
                                                      "aten::t",
                                                      "aten::unsqueeze",
                                                      "aten::squeeze",
                                                      "aten::unbind",
                                                      "aten::split",
                                                      "aten::chunk",
                                                      "aten::flatten",
                                                      "aten::unflatten",
                                                      "aten::expand",
                                                      "aten::split_with_sizes",
                                                      "aten::view_as",
                                                      "aten::expand_as",
                                                      "aten::alias",
                                                      "aten::detach",
                                                      "aten::diagonal",
                                                      "aten::movedim"};
    const ProgramNode& node = steps_.graph.nodes[index];
    const std::vector<size_t> writes = WrittenInputs(node);
    if (!writes.empty() && writes.front() != 0) {
      NoteGivenResults(node, writes);
      return;
    }
    if (node.inputs.empty() || node.inputs[0].second.kind != ProgramArgument::Kind::kValue) return;
    const uint32_t given = node.inputs[0].second.value;
    if (steps_.values[given].kind != ProgramValue::Kind::kTensor || (writes.empty() && !kViews.contains(node.target)))
      return;
    for (const uint32_t made : node.outputs) {
      if (made != ProgramNode::kNoValue && made != given) base_[made] = given;
    }
    if (writes.empty() || node.outputs.empty() || node.outputs[0] == ProgramNode::kNoValue) return;
    const LocalTensor made = tensors_[node.outputs[0]];
    const uint32_t base = BaseOf(given);
    for (const uint32_t value : {given, base}) {
      LocalTensor& behind = tensors_[value];
      const bool partial_in_full = made.known && made.terms && !behind.terms && !behind.zero;
      const bool full_in_partial = made.known && !made.terms && !made.zero && behind.terms;
      if (value != given && behind.known && (partial_in_full || full_in_partial)) {
        SizeConflict& conflict =
            AddConflict(SizeConflict::Kind::kTerms, index, call,
                        "it writes a " + std::string(made.terms ? "partial" : "full") + " tensor into a part of a " +
                            (made.terms ? "full" : "partial") + " one");
        conflict.origin = made.terms ? made.terms_origin : behind.terms_origin;
        behind = {};
        return;
      }
      if (value == given && given != base) continue;  // what the view showed is gone
      if (made.known && made.terms && !behind.terms) {
        behind.terms = true;
        behind.terms_at = made.terms_at;
        behind.terms_origin = made.terms_origin;
      }
      behind.zero = behind.zero && made.known && made.zero;
    }
  }

  // A tensor that an operator is given for a result is the result, and of what shows its memory nothing is known.
  void NoteGivenResults(const ProgramNode& node, const std::vector<size_t>& writes) {
    for (size_t i = 0; i < writes.size(); ++i) {
      const ProgramArgument& written = node.inputs[writes[i]].second;
      if (written.kind != ProgramArgument::Kind::kValue) continue;
      const bool known = i < node.outputs.size() && node.outputs[i] != ProgramNode::kNoValue;
      const LocalTensor made = known ? tensors_[node.outputs[i]] : LocalTensor();
      const uint32_t base = BaseOf(written.value);
      for (uint32_t value = 0; value < tensors_.size(); ++value) {
        if (BaseOf(value) == base) tensors_[value] = {};
      }
      tensors_[written.value] = made;
      if (known && node.outputs[i] != written.value) {
        tensors_[node.outputs[i]] = made;
        base_[node.outputs[i]] = written.value;
      }
    }
  }

  SizeConflict& AddConflict(SizeConflict::Kind kind, uint32_t index, const CallNode& call, std::string message) {
    SizeConflict& conflict = out_.sizes.emplace_back();
    conflict.kind = kind;
    conflict.node = index;
    conflict.module = call.module;
    conflict.message = std::move(message);
    return conflict;
  }

  // Both branches are walked. The ranks must run the same one, and the one that the full model runs.
  void RunPredicate(uint32_t index, const CallNode& call) {
    const ProgramArgument& predicate = steps_.graph.nodes[index].inputs[0].second;
    if (predicate.kind != ProgramArgument::Kind::kValue) return;
    if (steps_.values[predicate.value].kind != ProgramValue::Kind::kTensor) {
      const LocalNumber& number = numbers_[predicate.value];
      if (!number.follows_shard()) return;
      SizeConflict& conflict = AddConflict(SizeConflict::Kind::kFollowsShard, index, call,
                                           "its predicate is computed from the size of a shard");
      if (number.known()) {
        conflict.message = *number.local != 0
                               ? "its predicate is false for the full size and true for the size of a shard"
                               : "its predicate is true for the full size and false for the size of a shard";
        conflict.declared = *number.local;
        conflict.required = *number.full;
      }
      conflict.origin = number.origin;
      return;
    }
    const LocalTensor& tensor = tensors_[predicate.value];
    if (!tensor.known) {
      ++out_.unknown["cond"];
    } else if (tensor.terms) {
      SizeConflict& conflict =
          AddConflict(SizeConflict::Kind::kTerms, index, call,
                      "its predicate is computed from a partial tensor, so the ranks would run different branches");
      conflict.origin = tensor.terms_origin;
    }
  }

  // The operators behind the branches expect one layout.
  void JoinBranches(uint32_t index, const CallNode& call) {
    const ProgramNode& node = steps_.graph.nodes[index];
    const size_t results = node.outputs.size();
    for (size_t i = 0; i < results; ++i) {
      const LocalTensor& a = tensors_[node.inputs[i].second.value];
      const LocalTensor& b = tensors_[node.inputs[results + i].second.value];
      LocalTensor& made = tensors_[node.outputs[i]];
      made = {};
      if (!a.known || !b.known) {
        ++out_.unknown["cond"];
      } else if (SameLayout(a, b, i, index, call)) {
        made = a;
        made.zero = a.zero && b.zero;
        made.late = made.parameter = false;
        if (a.lacks != b.lacks) {
          const LocalTensor& lacking = a.lacks.empty() ? b : a;
          SizeConflict& conflict =
              AddConflict(SizeConflict::Kind::kLate, index, call,
                          "result " + std::to_string(i) + " of one branch alone has the parameter");
          conflict.parameter = static_cast<int32_t>(lacking.lacks.front());
          NoteLate(conflict);
          made.lacks.clear();
        }
        for (size_t d = 0; d < made.dims.size(); ++d) {
          if (a.dims[d].parts != b.dims[d].parts) made.dims[d].parts.clear();
        }
      }
    }
  }

  bool SameLayout(const LocalTensor& a, const LocalTensor& b, size_t result, uint32_t index, const CallNode& call) {
    const std::string name = "result " + std::to_string(result);
    for (size_t d = 0; d < a.dims.size() && d < b.dims.size(); ++d) {
      if (a.dims[d].local == b.dims[d].local) continue;
      const auto text = [&](const LocalDim& dim) {
        return dim.is_sharded() ? std::to_string(dim.local) + " of " + std::to_string(dim.full)
                                : "all " + std::to_string(dim.full);
      };
      SizeConflict& conflict =
          AddConflict(SizeConflict::Kind::kOperands, index, call,
                      "dim " + std::to_string(d) + " of " + name + " has " + text(a.dims[d]) +
                          " elements in the first branch and " + text(b.dims[d]) + " elements in the second");
      const LocalDim& sharded = a.dims[d].is_sharded() ? a.dims[d] : b.dims[d];
      const LocalDim& other = a.dims[d].is_sharded() ? b.dims[d] : a.dims[d];
      conflict.declared = other.local;
      conflict.required = sharded.local;
      conflict.origin = sharded.origin;
      conflict.other_origin = other.origin;
      return false;
    }
    if (a.terms == b.terms) return true;
    const LocalTensor& terms = a.terms ? a : b;
    SizeConflict& conflict =
        AddConflict(SizeConflict::Kind::kTerms, index, call,
                    name + " is partial in the " + (a.terms ? "first" : "second") + " branch alone");
    conflict.origin = terms.terms_origin;
    return false;
  }

  // Where terms come from: from an operand that follows from terms, else from the first dim here that is sharded.
  static void NoteTerms(const NodeSizes& sizes, LocalTensor& made) {
    const auto operands = sizes.Tensors();
    if (!operands) return;
    for (const LocalTensor* operand : *operands) {
      if (!operand->terms) continue;
      made.terms_at = operand->terms_at;
      made.terms_origin = operand->terms_origin;
      return;
    }
    made.terms_at = static_cast<int32_t>(sizes.index());
    for (const LocalTensor* operand : *operands) {
      for (const LocalDim& dim : operand->dims) {
        if (dim.is_sharded() && made.terms_origin < 0) made.terms_origin = dim.origin;
      }
    }
  }

  // The full sizes of the trace: those that a rule finds otherwise depend on data.
  bool Fits(LocalTensor& made, uint32_t value) const {
    const std::vector<int64_t>& sizes = steps_.values[value].sizes;
    if (made.dims.size() != sizes.size() || !IsCountable(sizes)) return false;
    std::vector<int64_t> local;
    for (size_t i = 0; i < sizes.size(); ++i) {
      LocalDim& dim = made.dims[i];
      if (dim.full != sizes[i]) {
        if (dim.is_sharded()) return false;
        dim.full = dim.local = sizes[i];
      }
      local.push_back(dim.local);
    }
    return IsCountable(local);
  }

  static bool AnyTerms(const NodeSizes& sizes) {
    const auto operands = sizes.Tensors();
    return operands && std::ranges::any_of(*operands, [](const LocalTensor* one) { return one->terms; });
  }

  // Every operand is full, and every number that of the full model: so are the results.
  bool DependsOnNoShard(const NodeSizes& sizes) const {
    const auto operands = sizes.Tensors();
    if (!operands) return false;
    for (const LocalTensor* operand : *operands) {
      if (operand->terms || std::ranges::any_of(operand->dims, &LocalDim::is_sharded)) return false;
    }
    const auto follows = [&](const ProgramArgument& argument) {
      return argument.kind == ProgramArgument::Kind::kValue && !sizes.IsTensor(argument) &&
             (sizes.NumberOf(argument).follows_shard() || sizes.NumberOf(argument).layout_unknown());
    };
    for (const auto& [name, argument] : sizes.node().inputs) {
      if (follows(argument) || std::ranges::any_of(argument.elements, follows)) return false;
    }
    return true;
  }

  // A shard of fewer heads than ranks is on several ranks, each of which would add the sum over its elements.
  void TakeNoReplicas(NodeSizes& sizes) {
    const auto operands = sizes.Tensors();
    const bool sums = std::ranges::any_of(sizes.results, [](const LocalTensor& made) { return made.terms; });
    if (sizes.in_conflict() || !operands || !sums || AnyTerms(sizes)) return;
    for (const LocalTensor* operand : *operands) {
      const LocalDim* shares = nullptr;
      int64_t elements = ranks_;  // of all ranks
      int64_t full = 1;
      for (const LocalDim& dim : operand->dims) {
        if (!dim.is_sharded()) continue;
        elements *= dim.local;
        full *= dim.full;
        if (dim.origin >= 0 && SharesHeads(LayoutAt(out_.origins[static_cast<size_t>(dim.origin)]))) shares = &dim;
      }
      if (shares == nullptr || elements <= full) continue;
      sizes.Conflict(SizeConflict::Kind::kNeedsFullDim,
                     "it sums over a dim of size " + std::to_string(shares->local) + " of " +
                         std::to_string(shares->full) +
                         " with fewer heads than ranks, so the sum over the ranks counts a head once for each rank "
                         "that has it",
                     shares->full, shares->local, shares);
      return;
    }
  }

  bool SharesHeads(const Layout& layout) const {
    const auto few = [&](int64_t heads) { return heads > 0 && heads < ranks_; };
    return few(layout.heads) || std::ranges::any_of(layout.parts, few, &Layout::Part::heads);
  }

  // Which parameter of which module.
  void NoteLate(SizeConflict& conflict) {
    if (conflict.kind != SizeConflict::Kind::kLate) return;
    reported_late_.insert(static_cast<uint32_t>(conflict.parameter));
    for (const auto& [module, parameters] : late_) {
      const auto found = parameters.find(static_cast<uint32_t>(conflict.parameter));
      if (found == parameters.end()) continue;
      conflict.origin = Origin({ShardOrigin::Kind::kParameter, found->second.module, found->second.param, 0});
      if (plan_.tree->modules()[module].path == conflict.module) return;
    }
  }

  void RunSize(const ProgramNode& node) {
    if (node.inputs.size() < 2 || node.outputs.empty() || node.outputs[0] == ProgramNode::kNoValue) return;
    const ProgramArgument& of = node.inputs[0].second;
    if (of.kind != ProgramArgument::Kind::kValue || node.inputs[1].second.kind != ProgramArgument::Kind::kInt) return;
    const std::vector<int64_t>& sizes = steps_.values[of.value].sizes;
    int64_t dim = node.inputs[1].second.integer;
    if (dim < 0) dim += static_cast<int64_t>(sizes.size());
    if (dim < 0 || static_cast<size_t>(dim) >= sizes.size() || !IsCountable(sizes)) return;
    LocalNumber& number = numbers_[node.outputs[0]];
    number = {sizes[static_cast<size_t>(dim)], std::nullopt};
    if (seen_[of.value]) {
      number.local = number.full;
    } else if (const LocalTensor& tensor = tensors_[of.value]; tensor.known) {
      const LocalDim& had = tensor.dims[static_cast<size_t>(dim)];
      number.local = had.local;
      number.origin = had.origin;
    }
  }

  void RunArithmetic(const ProgramNode& node) {
    if (node.outputs.empty() || node.outputs[0] == ProgramNode::kNoValue || node.inputs.empty()) return;
    const auto operand = [&](size_t i) -> LocalNumber {
      if (i >= node.inputs.size()) return {0, 0};
      const ProgramArgument& argument = node.inputs[i].second;
      switch (argument.kind) {
        case ProgramArgument::Kind::kInt:
        case ProgramArgument::Kind::kBool: return {argument.integer, argument.integer};
        case ProgramArgument::Kind::kFloat: return LocalNumber::Of(argument.number, argument.number);
        case ProgramArgument::Kind::kValue: return numbers_[argument.value];
        default: return {};
      }
    };
    const LocalNumber a = operand(0);
    const LocalNumber b = operand(1);
    const auto computed = [&](std::optional<NumberValue> left, std::optional<NumberValue> right) {
      return left && right ? graph::SizeArithmetic(node.target, *left, *right) : std::nullopt;
    };
    LocalNumber& made = numbers_[node.outputs[0]];
    made = LocalNumber::Of(computed(a.full_value(), b.full_value()), computed(a.local_value(), b.local_value()));
    made.computed_from_shard = (a.follows_shard() || b.follows_shard()) && !a.layout_unknown() && !b.layout_unknown();
    made.origin = a.follows_shard() || (a.origin >= 0 && !b.follows_shard()) ? a.origin : b.origin;
  }

  const ExportedProgram& steps_;
  const CompiledPlan& plan_;
  const MeshAxis axis_;
  CallTree calls_;
  int64_t ranks_ = 1;
  int64_t rank_ = 0;
  bool routes_ = false;
  AddedAfter late_;
  std::vector<NodeUse> uses_;
  std::set<uint32_t> reported_late_;  // values of parameters that have a conflict
  std::vector<uint32_t> base_;        // by value: of a view, the value whose memory it shows
  bool is_uneven_ = false;
  std::map<std::pair<std::string, int32_t>, const RecordedCall*> recorded_;
  std::vector<LocalTensor> tensors_;  // by value
  std::vector<LocalTensor> made_;     // likewise: as its operator makes it
  std::vector<LocalNumber> numbers_;  // likewise
  std::vector<bool> seen_;            // likewise: a parameter whose sizes the graph sees in full
  std::map<std::tuple<int, uint32_t, uint32_t, int64_t>, int32_t> origin_of_;
  SizeConflicts out_;
};

}  // namespace

SizeConflicts FindSizeConflicts(const ExportedProgram& program, const CompiledPlan& plan, MeshAxis axis) {
  const graph::DataSized sized(program);
  const ExportedProgram& steps = sized.program();
  Walk walk(steps, plan, axis);
  walk.Run();
  if (!walk.is_uneven()) return std::move(walk).conflicts();
  Walk last(steps, plan, axis, walk.last_rank());
  last.Run();
  SizeConflicts out = std::move(walk).conflicts();
  if (out.sizes.empty() && out.boundaries.empty() && out.guards.empty()) out = std::move(last).conflicts();
  return out;
}

std::vector<LocalValue> FindLocalValues(const ExportedProgram& program, const CompiledPlan& plan, MeshAxis axis) {
  const graph::DataSized sized(program);
  Walk walk(sized.program(), plan, axis);
  walk.Run();
  return walk.made();
}

std::vector<std::optional<Layout>> OutputLayouts(const ExportedProgram& program, const CompiledPlan& plan,
                                                 MeshAxis axis) {
  const graph::DataSized sized(program);
  Walk walk(sized.program(), plan, axis);
  walk.Run();
  std::vector<std::optional<Layout>> out = walk.OutputLayouts();
  const auto agree_with = [&](const std::vector<std::optional<Layout>>& other) {
    for (size_t i = 0; i < out.size(); ++i) {
      if (i >= other.size() || out[i] != other[i]) out[i] = std::nullopt;
    }
  };
  if (walk.is_uneven()) {
    Walk last(sized.program(), plan, axis, walk.last_rank());
    last.Run();
    agree_with(last.OutputLayouts());
  }
  for (const auto& other : program.others) agree_with(OutputLayouts(*other, plan, axis));
  return out;
}

}  // namespace moonshard
