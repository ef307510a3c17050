#include "engine/models/program/program_module.h"

#include <algorithm>

#include <c10/core/GradMode.h>

#include "engine/core/base/check.h"
#include "engine/models/program/run_body.h"

namespace moonshard {

using program::Body;
using program::Instruction;
using program::Operand;
using program::Place;

const ProgramModule::BoundBody& ProgramModule::BodyOf(int32_t occurrence) const {
  Check(occurrence >= 0 && static_cast<size_t>(occurrence) < bodies_.size() &&
            bodies_[static_cast<size_t>(occurrence)].body != nullptr,
        "the program does not have this call of '" + path_ + "'");
  return bodies_[static_cast<size_t>(occurrence)];
}

std::vector<c10::IValue> ProgramModule::Call(int32_t occurrence, std::vector<c10::IValue> inputs, bool gradients) {
  const BoundBody& bound = BodyOf(occurrence);
  if (boundary_ == nullptr) [[likely]]
    return BodyRunner::Run(*this, bound, std::move(inputs), gradients);
  return CallThrough(bound, std::move(inputs), gradients);
}

namespace {

std::vector<TensorSlot> SlotsOf(const std::vector<Place>& places, std::vector<c10::IValue>& values) {
  std::vector<TensorSlot> slots;
  slots.reserve(places.size());
  for (const Place& place : places) {
    if (values[place.index].isTensor()) slots.push_back({place.position, &values[place.index].toTensor()});
  }
  return slots;
}

}  // namespace

// As Hooked::CallThrough (engine/runtime/nn/hook.h) does for a class of C++: the arguments that the boundary sees are
// the body's inputs, and what it replaces is seen inside of this call only.
std::vector<c10::IValue> ProgramModule::CallThrough(const BoundBody& bound, std::vector<c10::IValue> inputs,
                                                    bool gradients) {
  const std::shared_ptr<Boundary> boundary = shared_boundary();
  const Body& body = *bound.body;
  CountCall();
  try {
    BoundaryCall call(*boundary);
    call.Enter(SlotsOf(body.arguments, inputs));
    std::vector<c10::IValue> outputs;
    if (boundary->runner() == nullptr) {
      InsideCall inside(*boundary);
      inside.Enter(SlotsOf(body.arguments, inputs));
      outputs = BodyRunner::Run(*this, bound, std::move(inputs), gradients);
      inside.Leave(SlotsOf(body.results, outputs));
    } else {
      // Tensors travel through the runner by themselves; numbers are kept for the second run.
      std::vector<at::Tensor> tensors;
      std::vector<uint32_t> tensor_at;
      for (uint32_t i = 0; i < inputs.size(); ++i) {
        if (!inputs[i].isTensor()) continue;
        tensor_at.push_back(i);
        tensors.push_back(std::move(inputs[i]).toTensor());
        inputs[i] = {};
      }
      const auto kept = std::make_shared<const std::vector<c10::IValue>>(std::move(inputs));
      const auto first = std::make_shared<std::vector<c10::IValue>*>(&outputs);
      const std::vector<at::Tensor> made = boundary->runner()->Run(
          [this, &bound, boundary, kept, tensor_at, first, gradients,
           keep = this->weak_from_this().lock()](std::vector<at::Tensor> given) {
            std::vector<c10::IValue> values = *kept;
            for (size_t i = 0; i < tensor_at.size(); ++i) values[tensor_at[i]] = std::move(given[i]);
            given.clear();
            InsideCall inside(*boundary);
            inside.Enter(SlotsOf(bound.body->arguments, values));
            // A first run without gradients, which the backward repeats with them.
            std::vector<c10::IValue> results =
                BodyRunner::Run(*this, bound, std::move(values), gradients && c10::GradMode::is_enabled());
            inside.Leave(SlotsOf(bound.body->results, results));
            std::vector<at::Tensor> out;
            for (const c10::IValue& value : results) {
              if (value.isTensor()) out.push_back(value.toTensor());
            }
            if (*first != nullptr) **first = std::move(results);
            return out;
          },
          std::move(tensors));
      *first = nullptr;
      size_t next = 0;
      for (c10::IValue& value : outputs) {
        if (value.isTensor()) value = made[next++];
      }
      Check(next == made.size(), "the CallRunner returned another number of tensors than the call");
    }
    call.Leave(SlotsOf(body.results, outputs));
    return outputs;
  } catch (...) {
    boundary->Explain();
    throw;
  }
}

namespace {

// Whether the operand `index` is a bias that the operator adds as it is along the last dim of its result, where the
// boundary adds it: of linear, and of addmm with a factor of 1, which run_body.cc then replaces by a product. The bias
// of a convolution is added along the channels, which are not the last dim.
bool IsLastBias(const Body& body, const Instruction& instruction, size_t index) {
  const auto& arguments = instruction.op->schema().arguments();
  const std::string& op = instruction.op->schema().name();
  if (op == "aten::linear") return arguments[index].name() == "bias";
  if (op != "aten::addmm" || arguments[index].name() != "self") return false;
  const auto beta = std::ranges::find(arguments, "beta", &c10::Argument::name) - arguments.begin();
  const Operand& factor = instruction.operands[static_cast<size_t>(beta)];
  return factor.kind == Operand::Kind::kConstant && body.constants[factor.index].toScalar().equal(1);
}

}  // namespace

// A parameter can be left out where every operator that reads it adds it to its result as such a bias. In the bodies
// one that is tied to another module's has that module's name.
bool ProgramModule::HoldBack(std::string_view parameter) {
  if (IsNeverCalled()) return true;
  const auto own = named_parameters(/*recurse=*/false);
  const at::Tensor* bias = own.find(std::string(parameter));
  if (bias == nullptr) return false;
  std::string name;
  for (const BoundBody& bound : bodies_) {
    if (bound.body == nullptr) continue;
    for (const Instruction& instruction : bound.body->instructions) {
      for (size_t i = 0; i < instruction.operands.size(); ++i) {
        const Operand& operand = instruction.operands[i];
        if (operand.kind != Operand::Kind::kParameter || !bound.parameters[operand.index].is_same(*bias)) continue;
        if (!instruction.op || !IsLastBias(*bound.body, instruction, i)) return false;
        name = bound.body->parameters[operand.index];
      }
    }
  }
  if (name.empty()) return false;
  held_back_ = name;
  return true;
}

void ProgramModule::ReleaseBack(std::string_view parameter) {
  if (held_back_.ends_with("." + std::string(parameter))) held_back_.clear();
}

// Only where the table is used by lookups alone: a module that multiplies by it too would need its own rule. A table
// that is tied to another module's has that module's name in the body.
bool ProgramModule::SetLocalRows(int64_t first, int64_t rows, int64_t total) {
  // Of a table that others are tied to, in a module that is never called, nothing is looked up.
  if (IsNeverCalled()) return true;
  bool looked_up = false;
  const auto own = named_parameters(/*recurse=*/false);
  const at::Tensor* table = own.find("weight");
  if (table == nullptr) return false;
  for (const BoundBody& bound : bodies_) {
    if (bound.body == nullptr) continue;
    for (const Instruction& instruction : bound.body->instructions) {
      for (size_t i = 0; i < instruction.operands.size(); ++i) {
        const Operand& operand = instruction.operands[i];
        if (operand.kind != Operand::Kind::kParameter || !bound.parameters[operand.index].is_same(*table)) continue;
        if (instruction.kind != Instruction::Kind::kLookup || i != 0) return false;
        looked_up = true;
      }
    }
  }
  if (looked_up) {
    local_rows_ = nn::LocalRows{first, rows, total};
    local_table_ = *table;
  }
  return looked_up;
}

// Only where every operator that reads the weight is a linear layer with it. The operators of other modules that read
// it are found before (engine/graph/program_checks.h).
bool ProgramModule::SetLowRank(std::shared_ptr<const LowRank> term) {
  const auto own = named_parameters(/*recurse=*/false);
  const at::Tensor* weight = own.find("weight");
  if (weight == nullptr) return false;
  bool multiplies = false;
  for (const BoundBody& bound : bodies_) {
    if (bound.body == nullptr) continue;
    const auto is_weight = [&](const Operand& operand) {
      return operand.kind == Operand::Kind::kParameter && bound.parameters[operand.index].is_same(*weight);
    };
    for (const program::ListOperand& list : bound.body->lists) {
      if (std::ranges::any_of(list.elements, is_weight)) return false;
    }
    for (const Instruction& instruction : bound.body->instructions) {
      for (size_t i = 0; i < instruction.operands.size(); ++i) {
        if (!is_weight(instruction.operands[i])) continue;
        if (!instruction.op || instruction.op->schema().name() != "aten::linear" || i != 1) return false;
        multiplies = true;
      }
    }
  }
  if (!multiplies) return false;
  low_rank_ = std::move(term);
  adapted_ = *weight;
  return true;
}

void ProgramModule::SetLocalShape(std::string_view tensor, at::IntArrayRef shape) {
  const auto found = tensor_index_.find(tensor);
  if (found == tensor_index_.end()) return;
  shared_->shapes[found->second] = shape.vec();
  const auto tied = shared_->ties.find(found->second);
  if (tied == shared_->ties.end()) return;
  for (const uint32_t same : *tied->second) shared_->shapes[same] = shape.vec();
}

}  // namespace moonshard
