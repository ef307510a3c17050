// The node is compiled alone: as the one node of a program whose inputs are the values that it reads.
#include "engine/models/program/trial/node_call.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include <ATen/core/List.h>

#include "engine/models/program/compile_program.h"

namespace moonshard::trial {
namespace {

using program::Instruction;
using program::ListOperand;
using program::Operand;

// The node with values numbered from 0 by first use.
class Alone {
 public:
  Alone(const ExportedProgram& program, const ProgramNode& node) : program_(program) {
    out_.file = program.file;
    out_.evaluates = false;  // a flag of the trace stays as it is
    ProgramNode& own = out_.graph.nodes.emplace_back(node);
    own.stack = -1;
    const bool drops = node.target.find("dropout") != std::string::npos;
    for (auto& [name, argument] : own.inputs) {
      Renumber(argument);
      if (drops && name == "train" && argument.kind == ProgramArgument::Kind::kBool) argument.integer = 0;
      if (name == "dropout_p" && argument.kind == ProgramArgument::Kind::kFloat) argument.number = 0;
    }
    for (const uint32_t value : reads_) {
      ProgramInput& input = out_.inputs.emplace_back();
      input.name = program.values[value].name;
      input.value = static_cast<int64_t>(number_.at(value));
    }
    for (uint32_t& value : own.outputs) {
      if (value != ProgramNode::kNoValue) value = NumberOf(value);
    }
  }

  ExportedProgram& program() { return out_; }
  std::vector<uint32_t>& reads() { return reads_; }

 private:
  uint32_t NumberOf(uint32_t value) {
    const auto [found, fresh] = number_.try_emplace(value, static_cast<uint32_t>(out_.values.size()));
    if (fresh) out_.values.push_back(program_.values[value]);
    return found->second;
  }

  void Renumber(ProgramArgument& argument) {
    if (argument.kind == ProgramArgument::Kind::kValue) {
      if (!number_.contains(argument.value)) reads_.push_back(argument.value);
      argument.value = NumberOf(argument.value);
    }
    for (ProgramArgument& element : argument.elements) Renumber(element);
  }

  const ExportedProgram& program_;
  ExportedProgram out_;
  std::map<uint32_t, uint32_t> number_;
  std::vector<uint32_t> reads_;
};

template <class T, class Convert>
c10::IValue Listed(const std::vector<c10::IValue>& values, const Convert& convert) {
  c10::List<T> out;
  for (const c10::IValue& value : values) out.push_back(convert(value));
  return out;
}

}  // namespace

std::optional<NodeCall> NodeCall::Of(const ExportedProgram& program, const ProgramNode& node) {
  if (node.kind != ProgramNode::Kind::kOperator || node.target == "aten::from_file") return std::nullopt;
  Alone alone(program, node);
  const Result<program::CompiledProgram> compiled = program::CompileProgram(alone.program());
  if (!compiled.ok()) return std::nullopt;
  const program::Body& body = *compiled.value().bodies.at({"", 0});
  if (body.instructions.size() != 1 || !body.instructions[0].op) return std::nullopt;
  NodeCall out;
  out.reads_ = std::move(alone.reads());
  out.instruction_ = body.instructions[0];
  out.constants_ = body.constants;
  out.lists_ = body.lists;
  const std::vector<c10::Argument>& formals = out.instruction_.op->schema().arguments();
  for (size_t i = 0; i < formals.size(); ++i) {
    const Operand& operand = out.instruction_.operands[i];
    const bool writes = formals[i].alias_info() != nullptr && formals[i].alias_info()->isWrite();
    if (!writes) continue;
    if (operand.kind == Operand::Kind::kRegister) out.writes_.push_back(out.reads_[operand.index]);
    if (operand.kind != Operand::Kind::kList) continue;
    for (const Operand& element : out.lists_[operand.index].elements) {
      if (element.kind == Operand::Kind::kRegister) out.writes_.push_back(out.reads_[element.index]);
    }
  }
  return out;
}

bool NodeCall::is_random() const {
  const std::string_view name = instruction_.op->schema().name();
  if (name.find("dropout") != std::string_view::npos || name == "aten::scaled_dot_product_attention") return false;
  const c10::ArrayRef<at::Tag> tags = instruction_.op->getTags();
  return std::ranges::find(tags, at::Tag::nondeterministic_seeded) != tags.end() || name.starts_with("aten::rand") ||
         name == "aten::rrelu" || name == "aten::rrelu_";
}

bool NodeCall::makes_memory() const {
  const std::string& name = instruction_.op->schema().name();
  return name.starts_with("aten::empty") || name.starts_with("aten::new_empty");
}

std::vector<double> NodeCall::factors() const {
  std::vector<double> out;
  for (const c10::IValue& one : constants_) {
    if (one.isDouble()) out.push_back(one.toDouble());
    if (one.isTensor() && one.toTensor().dim() == 0) out.push_back(one.toTensor().item().toDouble());
  }
  const std::vector<c10::Argument>& formals = instruction_.op->schema().arguments();
  for (size_t i = 0; i < formals.size(); ++i) {
    const c10::Type* type = formals[i].type().get();
    if (type->kind() == c10::TypeKind::OptionalType) type = type->containedType(0).get();
    const Operand& operand = instruction_.operands[i];
    const bool number = type->kind() == c10::TypeKind::NumberType && operand.kind == Operand::Kind::kConstant;
    if (number && constants_[operand.index].isInt())
      out.push_back(static_cast<double>(constants_[operand.index].toInt()));
  }
  return out;
}

std::optional<size_t> NodeCall::groups_rows() const {
  if (instruction_.op->schema().name() != "aten::_grouped_mm") return std::nullopt;
  constexpr size_t kEnds = 2;
  const Operand& ends = instruction_.operands[kEnds];
  return ends.kind == Operand::Kind::kRegister ? std::optional<size_t>(ends.index) : std::nullopt;
}

std::optional<size_t> NodeCall::may_view() const {
  const c10::FunctionSchema& schema = instruction_.op->schema();
  const auto annotated = [](const c10::Argument& one) { return one.alias_info() != nullptr; };
  if (std::ranges::none_of(schema.returns(), annotated)) return std::nullopt;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const Operand& operand = instruction_.operands[i];
    if (annotated(schema.arguments()[i]) && operand.kind == Operand::Kind::kRegister) return operand.index;
  }
  return std::nullopt;
}

c10::IValue NodeCall::Value(const Operand& operand, const std::vector<c10::IValue>& given) const {
  switch (operand.kind) {
    case Operand::Kind::kConstant: return constants_[operand.index];
    case Operand::Kind::kRegister: {
      const c10::IValue& value = given[operand.index];
      return operand.wrap && !value.isTensor() ? program::WrappedNumber(value.toScalar()) : value;
    }
    case Operand::Kind::kDevice: return at::Device(at::kCPU);
    case Operand::Kind::kParameter:
    case Operand::Kind::kTraining:
    case Operand::Kind::kDropout: return {};
    case Operand::Kind::kList: break;
  }
  const ListOperand& list = lists_[operand.index];
  std::vector<c10::IValue> values;
  for (const Operand& element : list.elements) values.push_back(Value(element, given));
  switch (list.of) {
    case ListOperand::Of::kTensors:
      return Listed<at::Tensor>(values, [](const c10::IValue& value) { return value.toTensor(); });
    case ListOperand::Of::kOptionalTensors:
      return Listed<std::optional<at::Tensor>>(values,
                                               [](const c10::IValue& value) { return value.toOptional<at::Tensor>(); });
    case ListOperand::Of::kInts: return Listed<int64_t>(values, [](const c10::IValue& value) { return value.toInt(); });
    case ListOperand::Of::kFloats:
      return Listed<double>(values, [](const c10::IValue& value) {
        return value.isDouble() ? value.toDouble() : static_cast<double>(value.toInt());
      });
    case ListOperand::Of::kBools: return Listed<bool>(values, [](const c10::IValue& value) { return value.toBool(); });
  }
  return {};
}

std::vector<c10::IValue> NodeCall::Call(const std::vector<c10::IValue>& given) const {
  c10::Stack stack;
  for (const Operand& operand : instruction_.operands) stack.push_back(Value(operand, given));
  if (instruction_.kind == Instruction::Kind::kAttention) {
    // Its kernels end the process if there are no key heads.
    const at::Tensor& key = stack[1].toTensor();
    TORCH_CHECK(key.numel() > 0, "attention without keys");
  }
  instruction_.op->callBoxed(stack);
  if (instruction_.outputs_in_list) {
    const c10::IValue list = std::move(stack[0]);
    stack.clear();
    for (const c10::IValue& one : list.toListRef()) stack.push_back(one);
  }
  return {stack.begin(), stack.end()};
}

}  // namespace moonshard::trial
