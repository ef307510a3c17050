// The part of the graph between the logits and the loss is taken out as a program of its own: the nodes that the loss
// depends on, followed backwards up to the logits and the labels. Sizes of other tensors are those of the
// example, whose shape the made-up logits and labels have.
#include "engine/models/own_loss.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <c10/util/accumulate.h>

#include "engine/graph/node_uses.h"
#include "engine/graph/plain_loss.h"
#include "engine/models/causal_lm.h"
#include "engine/models/program/compile_program.h"
#include "engine/models/program/program.h"

namespace moonshard {
namespace {

// Operators that give their first operand in another dtype or layout.
bool GivesItsOperand(const ProgramNode& node) {
  static const std::set<std::string, std::less<>> kTargets = {"aten::to", "aten::_to_copy", "aten::contiguous",
                                                              "aten::clone", "aten::alias"};
  return node.kind == ProgramNode::Kind::kOperator && kTargets.contains(node.target);
}

class LossPart {
 public:
  explicit LossPart(const ExportedProgram& program) : program_(program), part_(program) {
    for (size_t i = 0; i < program.graph.nodes.size(); ++i) {
      for (const uint32_t value : program.graph.nodes[i].outputs) {
        if (value != ProgramNode::kNoValue) made_by_[value] = i;
      }
    }
  }

  // The part as a program of `logits` and `labels`; nothing where the loss depends on more.
  std::optional<ExportedProgram> Take(uint32_t logits, uint32_t loss) {
    if (!Find(logits, loss)) return std::nullopt;
    part_.graph.nodes.clear();
    for (const size_t index : nodes_) {
      ProgramNode node = program_.graph.nodes[index];
      node.stack = -1;
      for (auto& [name, argument] : node.inputs) Replace(argument, logits);
      part_.graph.nodes.push_back(std::move(node));
    }
    ProgramArgument result;
    result.kind = ProgramArgument::Kind::kValue;
    result.value = loss;
    part_.graph.outputs = {result};
    part_.outputs = {{"loss", {}}};
    part_.modules.resize(1);
    part_.calls.clear();
    part_.stacks.clear();
    part_.symbols.clear();
    part_.guards.clear();
    part_.not_kept.clear();
    part_.others.clear();
    std::erase_if(part_.tensors, [&](const ProgramTensor& tensor) { return !tensors_.contains(tensor.value); });
    part_.inputs = {InputOf("logits", logits)};
    for (const ProgramInput& input : program_.inputs) {
      if (input.kind == "labels") part_.inputs.push_back(InputOf("labels", static_cast<uint32_t>(input.value)));
    }
    return std::move(part_);
  }

  // Finds the nodes from which the loss is computed, up to the logits; false where the loss depends on more.
  bool Find(uint32_t logits, uint32_t loss) {
    // A loss may be computed from the logits before the model casts them.
    for (uint32_t same = logits;;) {
      same_as_logits_.insert(same);
      const auto made = made_by_.find(same);
      if (made == made_by_.end()) break;
      const ProgramNode& node = program_.graph.nodes[made->second];
      if (!GivesItsOperand(node) || node.inputs[0].second.kind != ProgramArgument::Kind::kValue) break;
      same = node.inputs[0].second.value;
    }
    return Follow(loss);
  }

  // Whether all nodes that Find found are of a plain loss.
  bool IsPlain() const {
    return std::ranges::all_of(nodes_, [&](size_t index) { return IsOfPlainLoss(program_.graph.nodes[index]); });
  }

  // The nodes that Find found: indices into the graph.
  const std::set<size_t>& nodes() const { return nodes_; }

 private:
  // Of any size.
  ProgramInput InputOf(const std::string& name, uint32_t value) const {
    ProgramInput out;
    out.name = name;
    out.value = value;
    out.dtype = "float32";
    for (size_t d = 0; d < program_.values[value].sizes.size(); ++d) {
      SizeExpression any;
      any.op = SizeExpression::Op::kText;
      out.shape.push_back(std::move(any));
    }
    return out;
  }

  // Adds the nodes that a value depends on, in their order; false where it depends on more than it may.
  bool Follow(uint32_t loss) {
    std::vector<uint32_t> open = {loss};
    std::set<uint32_t> seen;
    const auto add = [&](const ProgramArgument& argument, const auto& self) -> void {
      if (argument.kind == ProgramArgument::Kind::kValue) open.push_back(argument.value);
      for (const ProgramArgument& element : argument.elements) self(element, self);
    };
    while (!open.empty()) {
      const uint32_t value = open.back();
      open.pop_back();
      if (same_as_logits_.contains(value) || !seen.insert(value).second) continue;
      const auto made = made_by_.find(value);
      if (made == made_by_.end()) {
        if (!MayBeGiven(value)) return false;
        continue;
      }
      const ProgramNode& node = program_.graph.nodes[made->second];
      if (SizeIn(node)) {
        sizes_[value] = *SizeIn(node);
        continue;
      }
      nodes_.insert(made->second);
      for (const auto& [name, argument] : node.inputs) add(argument, add);
      for (const size_t index : BranchesOf(made->second)) {
        nodes_.insert(index);
        for (const auto& [name, argument] : program_.graph.nodes[index].inputs) add(argument, add);
      }
    }
    return true;
  }

  // The kBranch and kElse of a kJoin; none of another node. A node in a branch is reached through the kJoin alone.
  std::vector<size_t> BranchesOf(size_t index) const {
    std::vector<size_t> out;
    const std::vector<ProgramNode>& nodes = program_.graph.nodes;
    if (nodes[index].kind != ProgramNode::Kind::kJoin) return out;
    int inside = 0;  // pairs of branches that ended before this one, and whose begin was not reached
    for (size_t i = index; i-- > 0;) {
      if (nodes[i].kind == ProgramNode::Kind::kJoin) ++inside;
      if (inside == 0 && (nodes[i].kind == ProgramNode::Kind::kElse || nodes[i].kind == ProgramNode::Kind::kBranch))
        out.push_back(i);
      if (nodes[i].kind == ProgramNode::Kind::kBranch && inside-- == 0) break;
    }
    return out;
  }

  // Whether a value that no node makes is one that the loss may depend on: labels, and constants of the program.
  bool MayBeGiven(uint32_t value) {
    for (const ProgramInput& input : program_.inputs) {
      if (input.value == value) return input.kind == "labels";
    }
    for (const ProgramTensor& tensor : program_.tensors) {
      if (tensor.value != value) continue;
      tensors_.insert(tensor.value);
      return tensor.kind == ProgramTensor::Kind::kConstant;
    }
    return false;
  }

  // The size in the example, where the node takes one.
  std::optional<int64_t> SizeIn(const ProgramNode& node) const {
    if (node.target != "aten::sym_size" || node.inputs.size() != 2) return std::nullopt;
    const ProgramArgument& tensor = node.inputs[0].second;
    const ProgramArgument& dim = node.inputs[1].second;
    if (tensor.kind != ProgramArgument::Kind::kValue || dim.kind != ProgramArgument::Kind::kInt) return std::nullopt;
    const std::vector<int64_t>& sizes = program_.values[tensor.value].sizes;
    const int64_t at = dim.integer < 0 ? dim.integer + static_cast<int64_t>(sizes.size()) : dim.integer;
    if (at < 0 || at >= static_cast<int64_t>(sizes.size())) return std::nullopt;
    return sizes[static_cast<size_t>(at)];
  }

  void Replace(ProgramArgument& argument, uint32_t logits) const {
    if (argument.kind == ProgramArgument::Kind::kValue) {
      if (same_as_logits_.contains(argument.value)) argument.value = logits;
      if (const auto size = sizes_.find(argument.value); size != sizes_.end()) {
        argument.kind = ProgramArgument::Kind::kInt;
        argument.integer = size->second;
      }
    }
    for (ProgramArgument& element : argument.elements) Replace(element, logits);
  }

  const ExportedProgram& program_;
  ExportedProgram part_;
  std::map<uint32_t, size_t> made_by_;
  std::set<uint32_t> same_as_logits_;
  std::set<size_t> nodes_;
  std::map<uint32_t, int64_t> sizes_;
  std::set<int64_t> tensors_;
};

// The value of the output with this name.
std::optional<uint32_t> ValueOf(const ExportedProgram& program, const std::string& output) {
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    const ProgramArgument& value = program.graph.outputs[i];
    if (program.outputs[i].name == output && value.kind == ProgramArgument::Kind::kValue) return value.value;
  }
  return std::nullopt;
}

void AddValues(const ProgramArgument& argument, std::set<uint32_t>& used) {
  if (argument.kind == ProgramArgument::Kind::kValue) used.insert(argument.value);
  for (const ProgramArgument& element : argument.elements) AddValues(element, used);
}

// Checks of a value, which have no results: they go with the value that they check.
bool IsCheck(const ProgramNode& node) {
  return node.kind == ProgramNode::Kind::kOperator && !WritesOperand(node) &&
         std::ranges::all_of(node.outputs, [](uint32_t value) { return value == ProgramNode::kNoValue; });
}

// Returns the positions of the removed outputs.
std::set<uint32_t> RemoveOutput(ExportedProgram& program, const std::string& name) {
  std::set<uint32_t> removed;
  for (size_t i = program.outputs.size(); i-- > 0;) {
    if (program.outputs[i].name != name) continue;
    program.outputs.erase(program.outputs.begin() + static_cast<std::ptrdiff_t>(i));
    program.graph.outputs.erase(program.graph.outputs.begin() + static_cast<std::ptrdiff_t>(i));
    removed.insert(static_cast<uint32_t>(i));
  }
  return removed;
}

// Leaves out what a call of a module returned; calls that then return nothing are left out. The root returns the
// outputs of the graph, in their order, without those at the positions `outputs`.
void RemoveResults(ExportedProgram& program, const std::set<uint32_t>& gone, const std::set<uint32_t>& outputs) {
  std::erase_if(program.calls, [&](RecordedCall& call) {
    const bool is_root = call.module.empty();
    std::vector<RecordedCall::Place> results;
    for (RecordedCall::Place place : call.results) {
      if (gone.contains(place.value) || (is_root && outputs.contains(place.position))) continue;
      if (is_root) {
        place.position -= static_cast<uint32_t>(std::distance(outputs.begin(), outputs.lower_bound(place.position)));
      }
      results.push_back(place);
    }
    const bool removed = results.size() < call.results.size();
    call.results = std::move(results);
    return removed && call.results.empty();
  });
}

// Of one archive. From the last node to the first, so that what a removed node used may be removed too.
std::optional<ExportedProgram> WithoutOwnLoss(const ExportedProgram& program) {
  const std::optional<uint32_t> logits = ValueOf(program, "logits");
  const std::optional<uint32_t> loss = ValueOf(program, "loss");
  LossPart part(program);
  if (!logits || !loss || !part.Find(*logits, *loss)) return std::nullopt;
  ExportedProgram out = program;
  const std::set<uint32_t> outputs = RemoveOutput(out, "loss");
  const std::vector<ProgramNode>& nodes = program.graph.nodes;
  std::set<uint32_t> used;
  std::set<uint32_t> gone;
  for (const ProgramArgument& output : out.graph.outputs) AddValues(output, used);
  for (size_t i = nodes.size(); i-- > 0;) {
    const ProgramNode& node = nodes[i];
    if (IsCheck(node)) continue;
    const bool needed = std::ranges::any_of(node.outputs, [&](uint32_t value) { return used.contains(value); });
    const bool of_loss = part.nodes().contains(i) || node.target == "aten::sym_size";
    if (needed || !of_loss) {
      for (const auto& [name, argument] : node.inputs) AddValues(argument, used);
      continue;
    }
    const bool plain = node.kind == ProgramNode::Kind::kOperator || node.kind == ProgramNode::Kind::kArithmetic;
    if (!plain || WritesOperand(node)) return std::nullopt;  // a branch, or an operator that changes a tensor
    gone.insert(node.outputs.begin(), node.outputs.end());
  }
  std::erase_if(out.graph.nodes, [&](const ProgramNode& node) {
    std::set<uint32_t> values(node.outputs.begin(), node.outputs.end());
    if (IsCheck(node)) {
      for (const auto& [name, argument] : node.inputs) AddValues(argument, values);
    }
    return std::ranges::any_of(values, [&](uint32_t value) { return gone.contains(value); });
  });
  RemoveResults(out, gone, outputs);
  return out;
}

}  // namespace

OwnLoss OwnLossOf(const ExportedProgram& program) {
  const std::optional<uint32_t> logits = ValueOf(program, "logits");
  const std::optional<uint32_t> loss = ValueOf(program, "loss");
  const auto labels = std::ranges::find(program.inputs, "labels", &ProgramInput::kind);
  if (!logits || !loss || labels == program.inputs.end() || labels->value < 0) return OwnLoss::kNone;
  LossPart found(program);
  std::optional<ExportedProgram> part = found.Take(*logits, *loss);
  const std::vector<int64_t>& shape = program.values[*logits].sizes;
  const std::vector<int64_t>& of_labels = program.values[static_cast<size_t>(labels->value)].sizes;
  if (!part || shape.size() != 3 || of_labels.size() != 2) return OwnLoss::kOfMore;
  if (!found.IsPlain()) return OwnLoss::kOther;
  const std::shared_ptr<Program> run =
      Program::FromProgram(std::make_shared<const ExportedProgram>(*std::move(part))).ValueOrThrow();
  const c10::NoGradGuard no_grad;
  const at::Tensor scores = at::arange(c10::multiply_integers(shape)).to(at::kDouble).mul(0.7).sin().mul(2).view(shape);
  at::Tensor targets = at::arange(c10::multiply_integers(of_labels)).mul(7).add(3).remainder(shape[2]).view(of_labels);
  if (targets.size(1) > 3) targets[0][3] = -100;
  const std::optional<c10::ScalarType> type = program::ScalarTypeOfProgram(program.values[*logits].dtype);
  if (!type) return OwnLoss::kOfMore;
  const at::Tensor given = scores.to(*type);
  run->eval();
  const double own = run->forward({{"logits", given}, {"labels", targets}})["loss"].item<double>();
  const double next_tokens = CausalLmLoss(given, targets).item<double>();
  // Sums of the same terms in float32, or in the program's dtype.
  constexpr double kRounding = 1e-4;
  const double bound = given.scalar_type() == at::kFloat || given.scalar_type() == at::kDouble ? kRounding : 1e-2;
  return std::abs(own - next_tokens) <= bound * std::abs(next_tokens) ? OwnLoss::kNextTokens : OwnLoss::kOther;
}

bool HasNextTokenLoss(const ExportedProgram& program) {
  const auto has = [](const ExportedProgram& archive) { return OwnLossOf(archive) == OwnLoss::kNextTokens; };
  return has(program) && std::ranges::all_of(program.others, [&](const auto& other) {
           return !ValueOf(*other, "loss") || has(*other);
         });
}

std::shared_ptr<const ExportedProgram> WithoutLoss(const ExportedProgram& program) {
  if (!IsCausalLm(program)) return nullptr;
  std::optional<ExportedProgram> out = WithoutOwnLoss(program);
  if (!out) return nullptr;
  for (auto& other : out->others) {
    if (!ValueOf(*other, "loss")) continue;
    other = WithoutLoss(*other);
    if (other == nullptr) return nullptr;
  }
  return std::make_shared<const ExportedProgram>(*std::move(out));
}

std::optional<Diagnostic> OwnLossDiffers(const ExportedProgram& program) {
  const OwnLoss own = OwnLossOf(program);
  if (own == OwnLoss::kNone || own == OwnLoss::kNextTokens) return std::nullopt;
  Diagnostic d =
      MakeDiagnostic(Finding::kNotSupported, "the program's own loss is not the cross-entropy of the next token");
  d.declared = own == OwnLoss::kOther
                   ? "a loss of the logits and labels whose value differs from that cross-entropy"
                   : "a loss that depends on more than the logits and labels, for example on auxiliary terms";
  return d;
}

}  // namespace moonshard
