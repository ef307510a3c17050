// One pass over the nodes in their order. Of every value the sources are kept: which results of calls it follows from,
// and through what. A value that an innermost call returns has one source for all that is outside of the call: that
// result. Inside of the call its own sources hold, so both are kept.
#include "engine/graph/data_flow_of.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "engine/graph/call_tree.h"
#include "engine/graph/size_rules/size_rules.h"

namespace moonshard {
namespace {

using program::CallNode;
using program::CallTree;

// By call (kInput: an input of the model) and place: what lies between.
using Sources = std::map<std::pair<int32_t, uint32_t>, uint8_t>;

uint8_t Between(const std::string& target) {
  static const std::set<std::string_view> kViews = {"view",
                                                    "reshape",
                                                    "_unsafe_view",
                                                    "flatten",
                                                    "unflatten",
                                                    "permute",
                                                    "transpose",
                                                    "t",
                                                    "unsqueeze",
                                                    "squeeze",
                                                    "expand",
                                                    "expand_as",
                                                    "view_as",
                                                    "repeat",
                                                    "slice",
                                                    "narrow",
                                                    "select",
                                                    "split",
                                                    "split_with_sizes",
                                                    "chunk",
                                                    "unbind",
                                                    "cat",
                                                    "stack",
                                                    "pad",
                                                    "contiguous",
                                                    "view_as_real",
                                                    "view_as_complex",
                                                    "reshape_as",
                                                    "flip",
                                                    "roll",
                                                    "tile",
                                                    "concat",
                                                    "clone",
                                                    "repeat_interleave",
                                                    "numpy_T",
                                                    "swapaxes",
                                                    "movedim",
                                                    "alias",
                                                    "to",
                                                    "detach",
                                                    "dropout",
                                                    "type_as",
                                                    "lift_fresh_copy"};
  static const std::set<std::string_view> kNothing = {"contiguous", "clone", "to",      "detach",
                                                      "dropout",    "alias", "type_as", "_to_copy"};
  std::string name = target.starts_with("aten::") ? target.substr(6) : target;
  if (kNothing.contains(name)) return 0;
  if (kViews.contains(name)) return FlowEdge::kReshape;
  return graph::IsElementwise(target) ? FlowEdge::kElementwise : FlowEdge::kOther;
}

class Follower {
 public:
  explicit Follower(const ExportedProgram& program) : program_(program), tree_(program::FindCalls(program)) {
    sources_.resize(program.values.size());
    returned_.resize(program.values.size());
  }

  DataFlow Follow() {
    for (const ProgramInput& input : program_.inputs) out_.inputs.push_back(input.name);
    for (const ProgramOutput& output : program_.outputs) out_.outputs.push_back(output.name);
    for (uint32_t i = 0; i < program_.inputs.size(); ++i) {
      if (program_.inputs[i].value >= 0)
        sources_[static_cast<size_t>(program_.inputs[i].value)] = {{{FlowEdge::kInput, i}, 0}};
    }
    for (const RecordedCall& call : program_.calls) recorded_.emplace(std::pair(call.module, call.occurrence), &call);
    for (size_t i = 1; i < tree_.calls.size(); ++i) {
      const CallNode& call = tree_.calls[i];
      out_.calls.push_back({call.module, call.occurrence, call.parent - 1});
    }
    Run(0);
    for (uint32_t i = 0; i < program_.graph.outputs.size(); ++i) {
      const ProgramArgument& output = program_.graph.outputs[i];
      if (output.kind == ProgramArgument::Kind::kValue) AddEdges(output.value, FlowEdge::kInput, i);
    }
    std::ranges::sort(out_.edges, {}, [](const FlowEdge& edge) {
      return std::tuple(edge.to < 0, edge.to, edge.input, edge.from, edge.output, edge.between);
    });
    const auto [first, last] = std::ranges::unique(out_.edges);
    out_.edges.erase(first, last);
    return std::move(out_);
  }

 private:
  // What a value follows from, as the call that is being run sees it: a result of a call that has ended, or what it is
  // made of.
  const Sources& SourcesOf(uint32_t value) const {
    return returned_[value].empty() ? sources_[value] : returned_[value];
  }

  void AddEdges(uint32_t value, int32_t to, uint32_t input) {
    for (const auto& [source, between] : SourcesOf(value)) {
      out_.edges.push_back({source.first, source.second, to, input, between});
    }
  }

  void Run(size_t index) {
    const CallNode& call = tree_.calls[index];
    const auto found = recorded_.find(std::pair(call.module, call.occurrence));
    const RecordedCall* recorded = index == 0 || found == recorded_.end() ? nullptr : found->second;
    const auto number = static_cast<int32_t>(index) - 1;
    if (recorded != nullptr) {
      std::set<std::pair<uint32_t, uint32_t>> done;
      for (const RecordedCall::Place& place : recorded->arguments) {
        if (std::ranges::find(call.inputs, place.value) == call.inputs.end()) continue;
        if (done.emplace(place.position, place.value).second) AddEdges(place.value, number, place.position);
      }
    }
    for (const CallNode::Item& item : call.items) {
      if (item.is_call) {
        Run(item.index);
      } else {
        RunNode(program_.graph.nodes[item.index]);
      }
    }
    if (recorded == nullptr) return;
    // A call with calls inside is transparent: the value follows from theirs. One without is a source.
    if (std::ranges::any_of(call.items, &CallNode::Item::is_call)) return;
    for (const RecordedCall::Place& place : recorded->results) {
      if (std::ranges::find(call.outputs, place.value) == call.outputs.end()) continue;
      if (returned_[place.value].empty()) returned_[place.value] = {{{number, place.position}, 0}};
    }
  }

  template <class Visit>
  static void EachValue(const ProgramArgument& argument, const Visit& visit) {
    if (argument.kind == ProgramArgument::Kind::kValue) visit(argument.value);
    for (const ProgramArgument& element : argument.elements) EachValue(element, visit);
  }

  void RunNode(const ProgramNode& node) {
    if (node.kind == ProgramNode::Kind::kJoin) {
      JoinBranches(node);
      return;
    }
    if (node.kind != ProgramNode::Kind::kOperator || node.target == "aten::sym_size") return;
    std::vector<const Sources*> operands;
    for (const auto& [name, argument] : node.inputs) {
      EachValue(argument, [&](uint32_t value) {
        if (program_.values[value].kind == ProgramValue::Kind::kTensor && !SourcesOf(value).empty())
          operands.push_back(&SourcesOf(value));
      });
    }
    Sources made;
    // A sum of what follows from one result twice (rotary embeddings) is no residual sum.
    const bool sum =
        (node.target == "aten::add" || node.target == "aten::add_") && operands.size() == 2 &&
        std::ranges::none_of(*operands[0], [&](const auto& one) { return operands[1]->contains(one.first); });
    const uint8_t own = sum ? FlowEdge::kResidual : Between(node.target);
    for (const Sources* operand : operands) {
      // Terms of an earlier sum, where the other operand brings new ones.
      const bool old = sum && std::ranges::all_of(*operand, IsTerm) &&
                       !std::ranges::all_of(*operands[operand == operands[0] ? 1 : 0], IsTerm);
      if (old) continue;
      for (const auto& [source, between] : *operand) made[source] |= static_cast<uint8_t>(between | own);
    }
    for (const uint32_t value : node.outputs) {
      if (value != ProgramNode::kNoValue) sources_[value] = made;
    }
  }

  // A result of branches follows from what it is in either branch.
  void JoinBranches(const ProgramNode& node) {
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ProgramArgument& result = node.inputs[i].second;
      if (result.kind != ProgramArgument::Kind::kValue) continue;
      Sources& made = sources_[node.outputs[i % node.outputs.size()]];
      for (const auto& [source, between] : SourcesOf(result.value)) made[source] |= between;
    }
  }

  static bool IsTerm(const Sources::value_type& source) { return (source.second & FlowEdge::kResidual) != 0; }

  const ExportedProgram& program_;
  CallTree tree_;
  std::map<std::pair<std::string, int32_t>, const RecordedCall*> recorded_;
  std::vector<Sources> sources_;   // by value: what it is made of
  std::vector<Sources> returned_;  // by value: the result of a call that it is; none: it is none
  DataFlow out_;
};

}  // namespace

DataFlow DataFlowOf(const ExportedProgram& program) { return Follower(program).Follow(); }

}  // namespace moonshard
