#include "engine/models/program/run_body.h"

#include <string>
#include <utility>

#include <ATen/ScalarOps.h>
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/List.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/where.h>
#include <c10/core/GradMode.h>

#include "engine/core/base/check.h"
#include "engine/models/program/compile_program.h"
#include "engine/runtime/intercept/region.h"
#include "engine/runtime/nn/low_rank.h"

namespace moonshard {
namespace {

using program::Body;
using program::Instruction;
using program::ListOperand;
using program::Operand;

// The modes that the regions of one body have switched; an exception puts them back too.
class Modes {
 public:
  Modes() = default;
  Modes(const Modes&) = delete;
  Modes& operator=(const Modes&) = delete;
  ~Modes() {
    while (!saved_.empty()) Leave();
  }

  void EnterGradMode(bool enabled) {
    saved_.push_back({false, c10::GradMode::is_enabled()});
    c10::GradMode::set_enabled(enabled);
  }

  // The device is the model's, wherever it was exported; one without autocast (meta) has nothing to switch. The cache
  // stays off where the caller has it off.
  void EnterAutocast(c10::DeviceType type, const c10::IValue& dtype, bool enabled, bool cached) {
    if (!at::autocast::is_autocast_available(type)) {
      saved_.push_back({false, c10::GradMode::is_enabled()});
      return;
    }
    Saved saved{true, at::autocast::is_autocast_enabled(type)};
    saved.device = type;
    saved.dtype = at::autocast::get_autocast_dtype(type);
    saved.cached = at::autocast::is_autocast_cache_enabled();
    saved_.push_back(saved);
    at::autocast::increment_nesting();
    at::autocast::set_autocast_enabled(type, enabled);
    if (dtype.isInt()) at::autocast::set_autocast_dtype(type, static_cast<c10::ScalarType>(dtype.toInt()));
    at::autocast::set_autocast_cache_enabled(cached && saved.cached);
  }

  void Leave() {
    const Saved& saved = saved_.back();
    if (saved.autocast) {
      if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
      at::autocast::set_autocast_enabled(saved.device, saved.enabled);
      at::autocast::set_autocast_dtype(saved.device, saved.dtype);
      at::autocast::set_autocast_cache_enabled(saved.cached);
    } else {
      c10::GradMode::set_enabled(saved.enabled);
    }
    saved_.pop_back();
  }

 private:
  struct Saved {
    bool autocast = false;
    bool enabled = false;
    c10::DeviceType device = c10::DeviceType::CPU;
    c10::ScalarType dtype = c10::kFloat;
    bool cached = true;
  };
  c10::SmallVector<Saved, 2> saved_;
};

struct Frame {
  const Body& body;
  const std::vector<at::Tensor>& parameters;
  bool training;
  at::Device device;
  std::string_view held_back;
  std::vector<c10::IValue> registers;

  c10::IValue Value(const Operand& operand) {
    switch (operand.kind) {
      case Operand::Kind::kRegister: {
        c10::IValue& value = registers[operand.index];
        if (operand.wrap && !value.isTensor()) return program::WrappedNumber(value.toScalar());
        return operand.last ? std::move(value) : value;
      }
      case Operand::Kind::kParameter:
        if (!held_back.empty() && body.parameters[operand.index] == held_back) return {};
        return parameters[operand.index];
      case Operand::Kind::kConstant: return body.constants[operand.index];
      case Operand::Kind::kDevice: return device;
      case Operand::Kind::kTraining: return training;
      case Operand::Kind::kDropout: return training ? body.constants[operand.index] : c10::IValue(0.0);
      case Operand::Kind::kList: break;
    }
    return ListValue(body.lists[operand.index]);
  }

  template <class T, class Convert>
  c10::IValue Listed(const ListOperand& list, const Convert& convert) {
    c10::List<T> out;
    out.reserve(list.elements.size());
    for (const Operand& element : list.elements) out.push_back(convert(Value(element)));
    return out;
  }

  c10::IValue ListValue(const ListOperand& list) {
    switch (list.of) {
      case ListOperand::Of::kTensors:
        return Listed<at::Tensor>(list, [](c10::IValue value) { return std::move(value).toTensor(); });
      case ListOperand::Of::kOptionalTensors:
        return Listed<std::optional<at::Tensor>>(
            list, [](const c10::IValue& value) { return value.toOptional<at::Tensor>(); });
      case ListOperand::Of::kInts: return Listed<int64_t>(list, [](const c10::IValue& value) { return value.toInt(); });
      case ListOperand::Of::kFloats:
        return Listed<double>(list, [](const c10::IValue& value) {
          return value.isDouble() ? value.toDouble() : static_cast<double>(value.toInt());
        });
      case ListOperand::Of::kBools: return Listed<bool>(list, [](const c10::IValue& value) { return value.toBool(); });
    }
    return {};
  }
};

// The branches of torch.cond that are running, innermost last. Without a value of the predicate (meta) both run, one
// after the other.
enum class Branch : uint8_t { kFirst, kSecond, kBoth };

Branch BranchOf(const c10::IValue& predicate) {
  if (!predicate.isTensor()) {
    return (predicate.isBool() ? predicate.toBool() : predicate.toInt() != 0) ? Branch::kFirst : Branch::kSecond;
  }
  const at::Tensor& tensor = predicate.toTensor();
  NotePredicate(tensor);
  if (tensor.is_meta()) return Branch::kBoth;
  return tensor.item<bool>() ? Branch::kFirst : Branch::kSecond;
}

// The results of one branch, or of both: then either may follow, so that gradients reach both.
void Join(Frame& frame, const Instruction& instruction, Branch branch) {
  const size_t results = instruction.outputs.size();
  std::vector<c10::IValue> first;
  std::vector<c10::IValue> second;
  // In the order of the operands: a register that is read again is moved by its last read.
  for (size_t i = 0; i < results && branch != Branch::kSecond; ++i)
    first.push_back(frame.Value(instruction.operands[i]));
  for (size_t i = results; i < 2 * results && branch != Branch::kFirst; ++i)
    second.push_back(frame.Value(instruction.operands[i]));
  for (size_t i = 0; i < results; ++i) {
    c10::IValue& out = frame.registers[instruction.outputs[i]];
    if (branch == Branch::kBoth) {
      const at::Tensor& a = first[i].toTensor();
      out = at::where(at::ones({}, a.options().dtype(at::kBool)), a, second[i].toTensor());
    } else {
      out = std::move(branch == Branch::kFirst ? first[i] : second[i]);
    }
  }
}

// A size of the graph that a plan made local, as where a fused projection is taken apart, leaves no key heads.
void CheckHeads(const at::Tensor& query, const at::Tensor& key) {
  TORCH_CHECK(
      key.dim() < 3 || key.size(-3) > 0 || query.size(-3) == 0, "attention has ", query.size(-3),
      " query heads but no key heads on this rank: a size that is an integer in the graph must be the local size "
      "under this plan");
}

}  // namespace

void BodyRunner::CallOperator(const ProgramModule& module, const Instruction& instruction, c10::Stack& stack) {
  try {
    if (!module.held_back_.empty() && !stack.empty() && stack[0].isNone() &&
        instruction.op->schema().name() == "aten::addmm") {
      // beta * bias + alpha * (a @ b) without its bias.
      const at::Tensor product = at::mm(stack[1].toTensor(), stack[2].toTensor());
      const c10::Scalar alpha = stack[4].toScalar();
      stack.clear();
      stack.emplace_back(alpha.equal(1) ? product : product * alpha);
    } else if (instruction.kind == Instruction::Kind::kLookup && module.local_rows_ &&
               stack[0].toTensor().is_same(module.local_table_)) {
      const at::Tensor rows = nn::LookUpLocalRows(
          stack[0].toTensor(), stack[1].toTensor(), *module.local_rows_,
          stack[2].toInt() < 0 ? std::nullopt : std::optional<int64_t>(stack[2].toInt()), stack[4].toBool());
      stack.clear();
      stack.emplace_back(rows);
    } else if (module.low_rank_ && stack.size() > 1 && stack[1].isTensor() &&
               stack[1].toTensor().is_same(module.adapted_)) {
      const at::Tensor input = stack[0].toTensor();
      instruction.op->callBoxed(stack);
      stack[0] = nn::AddLowRank(stack[0].toTensor(), input, *module.low_rank_, module.is_training());
    } else {
      if (instruction.kind == Instruction::Kind::kAttention) CheckHeads(stack[0].toTensor(), stack[1].toTensor());
      instruction.op->callBoxed(stack);
    }
    if (instruction.outputs_in_list) {
      const c10::IValue list = std::move(stack[0]);
      stack.clear();
      for (const c10::IValue& one : list.toListRef()) stack.push_back(one);
      TORCH_CHECK(stack.size() == instruction.outputs.size(), "the operator returns ", stack.size(),
                  " tensors, and the graph has ", instruction.outputs.size(),
                  ": the program was exported for other sizes");
    }
  } catch (c10::Error& error) {
    error.add_context("in node '" + instruction.name + "' (" + instruction.op->schema().name() + ") of '" +
                      module.path() + "'");
    throw;
  }
}

std::vector<c10::IValue> BodyRunner::Run(const ProgramModule& module, const ProgramModule::BoundBody& bound,
                                         std::vector<c10::IValue> inputs, bool gradients) {
  const Body& body = *bound.body;
  Check(inputs.size() == body.inputs, "the call passes another number of inputs than the body has");
  inputs.resize(body.registers);
  Frame frame{
      body, bound.parameters, module.is_training(), module.shared_->device, module.held_back_, std::move(inputs)};
  Modes modes;
  c10::SmallVector<Branch, 2> branches;
  c10::Stack stack;
  for (size_t next = 0; next < body.instructions.size();) {
    const Instruction& instruction = body.instructions[next++];
    switch (instruction.kind) {
      case Instruction::Kind::kOperator:
      case Instruction::Kind::kLookup:
      case Instruction::Kind::kAttention: {
        stack.clear();
        for (const Operand& operand : instruction.operands) stack.push_back(frame.Value(operand));
        if (instruction.in_training && !frame.training) {
          stack.resize(1);
        } else {
          CallOperator(module, instruction, stack);
        }
        for (size_t i = 0; i < instruction.outputs.size() && i < stack.size(); ++i) {
          if (instruction.outputs[i] != Instruction::kNowhere) {
            frame.registers[instruction.outputs[i]] = std::move(stack[i]);
          }
        }
        break;
      }
      case Instruction::Kind::kSize:
        frame.registers[instruction.outputs[0]] = frame.Value(instruction.operands[0]).toTensor().size(instruction.dim);
        break;
      case Instruction::Kind::kParameterSize:
        frame.registers[instruction.outputs[0]] =
            module.shared_->shapes[instruction.tensor][static_cast<size_t>(instruction.dim)];
        break;
      case Instruction::Kind::kArithmetic: {
        // One after the other: of a register that is read twice the second read moves its value out.
        const c10::IValue a = frame.Value(instruction.operands[0]);
        const c10::IValue b = instruction.operands.size() > 1 ? frame.Value(instruction.operands[1]) : c10::IValue();
        frame.registers[instruction.outputs[0]] = program::Arithmetic(instruction.arithmetic_code, a, b);
        break;
      }
      case Instruction::Kind::kCall: {
        std::vector<c10::IValue> given;
        given.reserve(instruction.operands.size());
        for (const Operand& operand : instruction.operands) given.push_back(frame.Value(operand));
        std::vector<c10::IValue> made = bound.children[instruction.child]->Call(
            bound.first_call + body.children[instruction.child].occurrence, std::move(given), gradients);
        for (size_t i = 0; i < instruction.outputs.size(); ++i) {
          frame.registers[instruction.outputs[i]] = std::move(made[i]);
        }
        break;
      }
      case Instruction::Kind::kEnterGradMode:
        modes.EnterGradMode(gradients && frame.Value(instruction.operands[0]).toBool());
        break;
      case Instruction::Kind::kEnterAutocast: {
        const c10::IValue cached = frame.Value(instruction.operands[3]);
        modes.EnterAutocast(frame.device.type(), frame.Value(instruction.operands[1]),
                            frame.Value(instruction.operands[2]).toBool(), cached.isNone() || cached.toBool());
        break;
      }
      case Instruction::Kind::kLeave: modes.Leave(); break;
      case Instruction::Kind::kBranch:
        branches.push_back(BranchOf(frame.Value(instruction.operands[0])));
        if (branches.back() == Branch::kSecond) next = instruction.skip_to;
        break;
      case Instruction::Kind::kElse:
        if (branches.back() == Branch::kFirst) next = instruction.skip_to;
        break;
      case Instruction::Kind::kJoin:
        Join(frame, instruction, branches.back());
        branches.pop_back();
        break;
    }
    for (const uint32_t index : instruction.unused) frame.registers[index] = {};
  }
  std::vector<c10::IValue> outputs;
  outputs.reserve(body.outputs.size());
  for (size_t i = 0; i < body.outputs.size(); ++i) {
    // An output that is returned twice is moved by its last return only.
    bool again = false;
    for (size_t j = i + 1; j < body.outputs.size(); ++j) again = again || body.outputs[j] == body.outputs[i];
    c10::IValue& value = frame.registers[body.outputs[i]];
    outputs.push_back(again ? value : std::move(value));
  }
  return outputs;
}

}  // namespace moonshard
