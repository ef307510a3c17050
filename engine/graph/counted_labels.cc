#include "engine/graph/counted_labels.h"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>

namespace moonshard {
namespace {

using Kind = ProgramArgument::Kind;

const ProgramArgument* Find(const ProgramNode& node, std::string_view name) {
  const auto found = std::ranges::find(node.inputs, name, &std::pair<std::string, ProgramArgument>::first);
  return found == node.inputs.end() ? nullptr : &found->second;
}

std::optional<int64_t> IntegerIn(const ProgramNode& node, std::string_view name) {
  const ProgramArgument* argument = Find(node, name);
  return argument != nullptr && argument->kind == Kind::kInt ? std::optional(argument->integer) : std::nullopt;
}

bool IsCrossEntropy(const ProgramNode& node) {
  static constexpr std::array<std::string_view, 6> kTargets = {"aten::cross_entropy_loss", "aten::nll_loss_nd",
                                                               "aten::nll_loss",           "aten::nll_loss2d",
                                                               "aten::nll_loss_forward",   "aten::nll_loss2d_forward"};
  return node.kind == ProgramNode::Kind::kOperator && std::ranges::count(kTargets, node.target) > 0;
}

// labels[:, 1:]
bool LeavesFirstOut(const ExportedProgram& program, const ProgramNode& node) {
  if (node.target != "aten::slice" || node.inputs[0].second.kind != Kind::kValue) return false;
  const auto dims = static_cast<int64_t>(program.values[node.inputs[0].second.value].sizes.size());
  const int64_t dim = IntegerIn(node, "dim").value_or(0);
  return dims >= 2 && (dim < 0 ? dim + dims : dim) == dims - 1 && IntegerIn(node, "start").value_or(0) == 1;
}

// The class dim of the scores of a cross-entropy is the second, or the only one.
std::optional<int64_t> ClassesOf(const ExportedProgram& program, const ProgramNode& node) {
  const ProgramArgument* scores = Find(node, "self");
  if (scores == nullptr || scores->kind != Kind::kValue) return std::nullopt;
  const ProgramValue& value = program.values[scores->value];
  const size_t dim = value.sizes.size() > 1 ? 1 : 0;
  if (dim >= value.sizes.size() || (dim < value.varies.size() && value.varies[dim])) return std::nullopt;
  return value.sizes[dim];
}

// Whether the example's labels have the shape of the logits without the last dim.
bool HaveShapeOfLogits(const ExportedProgram& program, const ProgramInput& labels) {
  const auto logits = std::ranges::find(program.outputs, "logits", &ProgramOutput::name);
  if (logits == program.outputs.end()) return false;
  const ProgramArgument& value = program.graph.outputs[static_cast<size_t>(logits - program.outputs.begin())];
  if (value.kind != Kind::kValue) return false;
  std::vector<int64_t> rows = program.values[value.value].sizes;
  if (rows.empty()) return false;
  rows.pop_back();
  return rows == program.values[static_cast<size_t>(labels.value)].sizes;
}

std::optional<CountedLabels> OfArchive(const ExportedProgram& program, const ProgramInput& labels) {
  if (labels.value < 0) return std::nullopt;
  const std::vector<ProgramNode>& nodes = program.graph.nodes;
  std::map<uint32_t, const ProgramNode*> made_by;
  for (const ProgramNode& node : nodes) {
    for (const uint32_t value : node.outputs) made_by[value] = &node;
  }
  for (const ProgramNode& node : nodes) {
    if (!IsCrossEntropy(node)) continue;
    CountedLabels out;
    out.input = labels.name;
    out.ignored = IntegerIn(node, "ignore_index").value_or(out.ignored);
    out.classes = ClassesOf(program, node);
    const ProgramArgument* target = Find(node, "target");
    while (target != nullptr && target->kind == Kind::kValue && target->value != labels.value) {
      const auto made = made_by.find(target->value);
      if (made == made_by.end() || made->second->inputs.empty()) break;
      out.shifted = out.shifted || LeavesFirstOut(program, *made->second);
      target = &made->second->inputs[0].second;
    }
    if (target != nullptr && target->kind == Kind::kValue && target->value == labels.value) {
      out.of_logits = HaveShapeOfLogits(program, labels);
      return out;
    }
  }
  return std::nullopt;
}

}  // namespace

CountedLabels CountedLabelsOf(const ExportedProgram& program) {
  std::vector<const ExportedProgram*> archives = {&program};
  for (const auto& other : program.others) archives.push_back(other.get());
  CountedLabels out;
  for (const ExportedProgram* archive : archives) {
    const auto labels = std::ranges::find_if(
        archive->inputs, [](const ProgramInput& input) { return input.kind == "labels" || input.name == "labels"; });
    if (labels == archive->inputs.end()) continue;
    out.input = labels->name;
    if (const std::optional<CountedLabels> found = OfArchive(*archive, *labels)) return *found;
  }
  return out;
}

}  // namespace moonshard
