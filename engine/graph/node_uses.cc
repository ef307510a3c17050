#include "engine/graph/node_uses.h"

#include <algorithm>
#include <string>

namespace moonshard {
namespace {

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

bool WritesOperand(const ProgramNode& node) {
  if (node.kind != ProgramNode::Kind::kOperator) return false;
  return (node.target.ends_with('_') && !node.target.ends_with("__")) || node.target.find("::__i") != std::string::npos;
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
