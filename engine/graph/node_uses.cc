#include "engine/graph/node_uses.h"

#include <algorithm>
#include <set>
#include <string>
#include <string_view>

namespace moonshard {
namespace {

// Overloads whose last arguments are their results.
bool IsGivenResults(const ProgramNode& node) {
  static const std::set<std::string_view> kOthers = {
      "L",          "Q",       "U",   "X",        "dim_max", "dim_min", "dim_values", "eigenvalues", "eigvals",
      "grad_input", "inverse", "out", "out_mode", "output",  "result",  "sign",       "values",      "values_stable"};
  const std::string& overload = node.overload;
  if (node.target == "aten::geqrf" && overload == "a") return true;
  return overload.ends_with("_out") || overload.starts_with("out_") || overload.starts_with("Out") ||
         kOthers.contains(overload);
}

bool IsUsed(const ProgramNode& node, const std::vector<bool>& used) {
  return std::ranges::any_of(node.outputs,
                             [&](uint32_t value) { return value != ProgramNode::kNoValue && used[value]; });
}

// The values that these outputs of the program depend on.
template <class Counts>
std::vector<bool> UsedBy(const ExportedProgram& program, const Counts& counts) {
  std::vector<bool> used(program.values.size());
  const auto use = [&](const ProgramArgument& argument, const auto& self) -> void {
    if (argument.kind == ProgramArgument::Kind::kValue) used[argument.value] = true;
    for (const ProgramArgument& element : argument.elements) self(element, self);
  };
  for (size_t i = 0; i < program.graph.outputs.size(); ++i) {
    if (i >= program.outputs.size() || counts(program.outputs[i])) use(program.graph.outputs[i], use);
  }
  for (size_t i = program.graph.nodes.size(); i-- > 0;) {
    const ProgramNode& node = program.graph.nodes[i];
    const bool effect = (node.kind != ProgramNode::Kind::kOperator && node.kind != ProgramNode::Kind::kArithmetic) ||
                        WritesOperand(node);
    if (!effect && !IsUsed(node, used)) continue;
    for (const auto& [name, argument] : node.inputs) use(argument, use);
  }
  return used;
}

}  // namespace

std::vector<size_t> WrittenInputs(const ProgramNode& node) {
  if (node.kind != ProgramNode::Kind::kOperator || node.inputs.empty()) return {};
  if ((node.target.ends_with('_') && !node.target.ends_with("__")) || node.target.find("::__i") != std::string::npos)
    return {0};
  if (!IsGivenResults(node)) return {};
  const size_t results = std::clamp<size_t>(node.outputs.size(), 1, node.inputs.size());
  std::vector<size_t> out;
  for (size_t i = node.inputs.size() - results; i < node.inputs.size(); ++i) out.push_back(i);
  return out;
}

std::vector<NodeUse> NodeUsesOf(const ExportedProgram& program) {
  const std::vector<bool> used = UsedBy(program, [](const ProgramOutput& /*output*/) { return true; });
  const std::vector<bool> beside = UsedBy(program, [](const ProgramOutput& output) { return output.name != "loss"; });
  std::vector<NodeUse> out;
  for (const ProgramNode& node : program.graph.nodes) {
    const bool outputs = IsUsed(node, beside) || WritesOperand(node);
    out.push_back(outputs ? NodeUse::kOutputs : IsUsed(node, used) ? NodeUse::kLoss : NodeUse::kNothing);
  }
  return out;
}

}  // namespace moonshard
