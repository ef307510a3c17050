// Registers are numbered within a body in the order in which their values appear, inputs first, and names inside are
// relative to the module. Two calls that do the same then have the same text, and share the body.
#include "engine/models/program/compile_program.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include <ATen/ScalarOps.h>
#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>

#include "engine/core/base/check.h"
#include "engine/graph/call_tree.h"
#include "engine/layout/dtype.h"
#include "engine/runtime/dtype/scalar_type.h"

namespace moonshard::program {
namespace {

using Kind = ProgramArgument::Kind;

// An argument cannot be what the schema asks for.
struct Misfit {
  std::string message;
};

c10::ScalarType ScalarTypeIn(int64_t serialized) {
  const std::optional<c10::ScalarType> type = ScalarTypeOfProgram(serialized);
  if (!type) throw Misfit{"dtype " + std::to_string(serialized) + " of the schema of torch.export is not supported"};
  return *type;
}

const c10::Type* WithoutOptional(const c10::Type* type) {
  while (type != nullptr && type->kind() == c10::TypeKind::OptionalType) type = type->containedType(0).get();
  return type;
}

c10::Layout LayoutOf(int64_t serialized) {
  constexpr int64_t kStrided = 7;
  if (serialized != kStrided) throw Misfit{"the layout of a tensor is not strided, which is not supported"};
  return c10::Layout::Strided;
}

c10::MemoryFormat MemoryFormatOf(int64_t serialized) {
  switch (serialized) {
    case 1: return c10::MemoryFormat::Contiguous;
    case 2: return c10::MemoryFormat::ChannelsLast;
    case 3: return c10::MemoryFormat::ChannelsLast3d;
    case 4: return c10::MemoryFormat::Preserve;
    default: throw Misfit{"an argument is an unknown memory format"};
  }
}

class BodyCompiler {
 public:
  BodyCompiler(const ExportedProgram& program, const CallTree& tree, const std::vector<int32_t>& tensor_of_value,
               Diagnostics& errors)
      : program_(program), tree_(tree), tensor_of_value_(tensor_of_value), errors_(errors) {}

  // `text`: what the body does, equal for equal bodies.
  Body Compile(const CallNode& call, const RecordedCall* recorded, std::string& text) {
    call_ = &call;
    for (const uint32_t value : call.inputs) {
      AddText('i', static_cast<int64_t>(program_.values[value].kind));
      body_.tensor_inputs.push_back(program_.values[value].kind == ProgramValue::Kind::kTensor);
      Register(value);
    }
    body_.inputs = static_cast<uint32_t>(call.inputs.size());
    AddItems();
    for (const uint32_t value : call.outputs) AddOutput(value);
    PlaceTensors(recorded);
    return Finished(text);
  }

  // The root returns the graph's outputs, which may be inputs, parameters or constants too.
  Body CompileRoot(const CallNode& call, std::string& text) {
    call_ = &call;
    for (const ProgramInput& input : program_.inputs) {
      body_.tensor_inputs.push_back(input.value >= 0 && program_.values[static_cast<size_t>(input.value)].kind ==
                                                            ProgramValue::Kind::kTensor);
      if (input.value >= 0) {
        Register(static_cast<uint32_t>(input.value));
      } else {
        ++body_.registers;
      }
    }
    body_.inputs = static_cast<uint32_t>(program_.inputs.size());
    AddItems();
    for (const ProgramArgument& output : program_.graph.outputs) {
      const bool is_register =
          output.kind == Kind::kValue && tensor_of_value_[output.value] < 0 && registers_.contains(output.value);
      if (is_register) {
        AddOutput(output.value);
        continue;
      }
      errors_.push_back(Error("an output of the program is a constant or a parameter, which is not supported", ""));
    }
    for (uint32_t i = 0; i < body_.inputs; ++i) {
      if (body_.tensor_inputs[i]) body_.arguments.push_back({i, i});
    }
    for (uint32_t i = 0; i < body_.outputs.size(); ++i) body_.results.push_back({i, i});
    return Finished(text);
  }

 private:
  void AddItems() {
    for (const CallNode::Item& item : call_->items) {
      if (item.is_call) {
        AddCall(tree_.calls[item.index]);
      } else {
        AddNode(program_.graph.nodes[item.index]);
      }
    }
  }

  Body Finished(std::string& text) {
    MarkLastUses();
    text = std::move(text_);
    return std::move(body_);
  }

  Diagnostic Error(const std::string& message, const std::string& node) const {
    Diagnostic d = MakeDiagnostic(Finding::kBadProgram, (node.empty() ? "" : "node '" + node + "': ") + message);
    d.path = program_.file + (call_->module.empty() ? "" : ": " + call_->module);
    return d;
  }

  uint32_t Register(uint32_t value) {
    const auto [found, fresh] = registers_.try_emplace(value, body_.registers);
    if (fresh) ++body_.registers;
    return found->second;
  }

  // ".weight" for "layers.0.norm.weight" in layers.0.norm: a name that is the same in equal modules.
  std::string Relative(const std::string& name) const {
    if (call_->module.empty()) return "." + name;
    if (name == call_->module) return ".";
    return name.starts_with(call_->module + ".") ? name.substr(call_->module.size()) : name;
  }

  // So that a name with any characters in it ends where it ends.
  static std::string Sized(const std::string& name) { return std::to_string(name.size()) + ":" + name; }

  Operand Constant(c10::IValue value, const std::string& its_text) {
    text_ += "c" + its_text;
    body_.constants.push_back(std::move(value));
    return {Operand::Kind::kConstant, false, false, static_cast<uint32_t>(body_.constants.size() - 1)};
  }

  Operand ValueOperand(uint32_t value) {
    Operand out;
    if (const int32_t tensor = tensor_of_value_[value]; tensor >= 0) {
      const std::string name = Relative(program_.tensors[static_cast<size_t>(tensor)].name);
      const auto [found, fresh] = parameters_.try_emplace(name, static_cast<uint32_t>(body_.parameters.size()));
      if (fresh) body_.parameters.push_back(name);
      out.kind = Operand::Kind::kParameter;
      out.index = found->second;
      text_ += "p" + Sized(name);
    } else {
      out.kind = Operand::Kind::kRegister;
      out.index = Register(value);
      AddText('r', out.index);
    }
    return out;
  }

  // The argument as `type` wants it; null: whatever it is.
  Operand Make(const ProgramArgument& argument, const c10::Type* type) {
    type = WithoutOptional(type);
    const c10::TypeKind wanted = type == nullptr ? c10::TypeKind::AnyType : type->kind();
    const bool tensor = wanted == c10::TypeKind::TensorType;
    switch (argument.kind) {
      case Kind::kNone: return Constant({}, "-");
      case Kind::kValue: {
        Operand out = ValueOperand(argument.value);
        out.wrap = tensor && program_.values[argument.value].kind != ProgramValue::Kind::kTensor;
        return out;
      }
      case Kind::kInt:
        if (wanted == c10::TypeKind::FloatType) return Real(static_cast<double>(argument.integer));
        if (tensor) return Constant(WrappedNumber(argument.integer), "w" + std::to_string(argument.integer));
        if (wanted == c10::TypeKind::ListType) {  // a single number for all dims
          return Constant(std::vector<int64_t>{argument.integer}, "l" + std::to_string(argument.integer));
        }
        return Constant(argument.integer, std::to_string(argument.integer));
      case Kind::kFloat:
        if (tensor) return Constant(WrappedNumber(argument.number), "w" + TextOfReal(argument.number));
        return Real(argument.number);
      case Kind::kBool:
        if (tensor) return Constant(WrappedNumber(argument.integer != 0), "wb" + std::to_string(argument.integer));
        return Constant(argument.integer != 0, "b" + std::to_string(argument.integer));
      case Kind::kString: return Constant(argument.text, "s" + Sized(argument.text));
      case Kind::kScalarType:
        return Constant(static_cast<int64_t>(ScalarTypeIn(argument.integer)), "t" + std::to_string(argument.integer));
      case Kind::kLayout:
        return Constant(static_cast<int64_t>(LayoutOf(argument.integer)), "y" + std::to_string(argument.integer));
      case Kind::kMemoryFormat:
        return Constant(static_cast<int64_t>(MemoryFormatOf(argument.integer)), "m" + std::to_string(argument.integer));
      case Kind::kDevice: text_ += "d"; return {Operand::Kind::kDevice, false, false, 0};
      case Kind::kList: return MakeList(argument, type);
    }
    throw Misfit{"an argument has an unknown kind"};
  }

  static std::string TextOfReal(double number) {
    constexpr int kLongest = 40;
    char text[kLongest];
    return {text, static_cast<size_t>(std::snprintf(text, sizeof(text), "%a", number))};
  }

  Operand Real(double number) { return Constant(number, "f" + TextOfReal(number)); }

  Operand MakeList(const ProgramArgument& argument, const c10::Type* type) {
    const c10::Type* element =
        type != nullptr && type->kind() == c10::TypeKind::ListType ? type->containedType(0).get() : nullptr;
    const bool optional = element != nullptr && element->kind() == c10::TypeKind::OptionalType;
    const c10::Type* inner = WithoutOptional(element);
    ListOperand list;
    if ((inner != nullptr && inner->kind() == c10::TypeKind::TensorType) || (inner == nullptr && argument.of_tensors)) {
      list.of = optional ? ListOperand::Of::kOptionalTensors : ListOperand::Of::kTensors;
    } else if (inner != nullptr ? inner->kind() == c10::TypeKind::FloatType : argument.of_floats) {
      list.of = ListOperand::Of::kFloats;
    } else if (inner != nullptr && inner->kind() == c10::TypeKind::BoolType) {
      list.of = ListOperand::Of::kBools;
    }
    const bool constant =
        std::all_of(argument.elements.begin(), argument.elements.end(), [](const ProgramArgument& one) {
          return one.kind == Kind::kInt || one.kind == Kind::kFloat || one.kind == Kind::kBool ||
                 one.kind == Kind::kString;
        });
    const bool of_tensors = list.of == ListOperand::Of::kTensors || list.of == ListOperand::Of::kOptionalTensors;
    if (constant && !of_tensors) return ConstantList(argument, list.of);
    text_ += "[" + std::to_string(static_cast<int>(list.of));
    for (const ProgramArgument& one : argument.elements)
      list.elements.push_back(Make(one, of_tensors ? nullptr : inner));
    text_ += "]";
    body_.lists.push_back(std::move(list));
    return {Operand::Kind::kList, false, false, static_cast<uint32_t>(body_.lists.size() - 1)};
  }

  Operand ConstantList(const ProgramArgument& argument, ListOperand::Of of) {
    std::string its_text = "l";
    if (!argument.elements.empty() && argument.elements[0].kind == Kind::kString) {
      c10::List<std::string> texts;
      for (const ProgramArgument& one : argument.elements) {
        texts.push_back(one.text);
        its_text += Sized(one.text);
      }
      return Constant(texts, its_text);
    }
    if (of == ListOperand::Of::kFloats) {
      std::vector<double> numbers;
      for (const ProgramArgument& one : argument.elements) {
        numbers.push_back(one.kind == Kind::kFloat ? one.number : static_cast<double>(one.integer));
        its_text += TextOfReal(numbers.back()) + ",";
      }
      return Constant(numbers, its_text);
    }
    std::vector<int64_t> numbers;
    c10::List<bool> truths;
    for (const ProgramArgument& one : argument.elements) {
      if (one.kind == Kind::kFloat) throw Misfit{"a list of integers contains a float"};
      numbers.push_back(one.integer);
      truths.push_back(one.integer != 0);
      its_text += std::to_string(one.integer) + ",";
    }
    if (of == ListOperand::Of::kBools) return Constant(truths, its_text + "b");
    return Constant(numbers, its_text);
  }

  void AddNode(const ProgramNode& node) {
    Instruction instruction;
    instruction.name = node.name;
    text_ += "\n" + Sized(node.target + "." + node.overload) + (node.outputs_in_list ? "*" : "") + "(";
    try {
      switch (node.kind) {
        case ProgramNode::Kind::kOperator:
          if (!AddOperator(node, instruction)) return;
          break;
        case ProgramNode::Kind::kArithmetic:
          instruction.kind = Instruction::Kind::kArithmetic;
          instruction.arithmetic = node.target;
          instruction.arithmetic_code = ArithmeticCode(node.target);
          if (instruction.arithmetic_code < 0) throw Misfit{"arithmetic '" + node.target + "' is not supported"};
          if (node.inputs.size() != (TakesOne(instruction.arithmetic_code) ? 1 : 2) || node.outputs.size() != 1)
            throw Misfit{"arithmetic '" + node.target + "' has the wrong number of operands or results"};
          for (const auto& [name, argument] : node.inputs) instruction.operands.push_back(Make(argument, nullptr));
          break;
        case ProgramNode::Kind::kEnterGradMode:
        case ProgramNode::Kind::kEnterAutocast:
          instruction.kind = node.kind == ProgramNode::Kind::kEnterGradMode ? Instruction::Kind::kEnterGradMode
                                                                            : Instruction::Kind::kEnterAutocast;
          CheckMode(node);
          for (const auto& [name, argument] : node.inputs) instruction.operands.push_back(Make(argument, nullptr));
          break;
        case ProgramNode::Kind::kLeave: instruction.kind = Instruction::Kind::kLeave; break;
        case ProgramNode::Kind::kBranch:
        case ProgramNode::Kind::kElse:
        case ProgramNode::Kind::kJoin: AddBranch(node, instruction); break;
      }
    } catch (const Misfit& misfit) {
      errors_.push_back(Error(misfit.message, node.name));
      return;
    }
    text_ += ")";
    AddOutputs(node.outputs, instruction);
    instruction.outputs_in_list = node.outputs_in_list;
    body_.instructions.push_back(std::move(instruction));
  }

  static void CheckMode(const ProgramNode& node) {
    const auto is = [&](size_t i, Kind kind) { return node.inputs[i].second.kind == kind; };
    const bool fits = node.kind == ProgramNode::Kind::kEnterGradMode
                          ? is(0, Kind::kBool)
                          : (is(1, Kind::kScalarType) || is(1, Kind::kNone)) && is(2, Kind::kBool) &&
                                (is(3, Kind::kBool) || is(3, Kind::kNone));
    if (!fits) throw Misfit{"an argument of '" + node.target + "' has the wrong kind"};
  }

  // Sets where earlier instructions continue: a kBranch behind its kElse, a kElse at its kJoin.
  void AddBranch(const ProgramNode& node, Instruction& instruction) {
    const auto here = static_cast<uint32_t>(body_.instructions.size());
    for (const auto& [name, argument] : node.inputs) instruction.operands.push_back(Make(argument, nullptr));
    if (node.kind == ProgramNode::Kind::kBranch) {
      instruction.kind = Instruction::Kind::kBranch;
      text_ += "?";
      branches_.push_back(here);
      return;
    }
    Check(!branches_.empty(), "a branch of cond is not in one module call");
    const bool joins = node.kind == ProgramNode::Kind::kJoin;
    instruction.kind = joins ? Instruction::Kind::kJoin : Instruction::Kind::kElse;
    text_ += joins ? "." : ":";
    body_.instructions[branches_.back()].skip_to = joins ? here : here + 1;
    branches_.back() = here;
    if (joins) branches_.pop_back();
  }

  void AddOutputs(const std::vector<uint32_t>& values, Instruction& instruction) {
    for (const uint32_t value : values) {
      instruction.outputs.push_back(value == ProgramNode::kNoValue ? Instruction::kNowhere : Register(value));
      AddText('>', instruction.outputs.back());
    }
  }

  // LibTorch takes a dtype, a layout or a memory format as an integer, and does not check it.
  static void CheckEnumeration(const c10::Argument& formal, const ProgramArgument& argument) {
    const c10::TypeKind wanted = WithoutOptional(formal.real_type().get())->kind();
    const bool fits = argument.kind == Kind::kNone ||
                      (wanted == c10::TypeKind::ScalarTypeType     ? argument.kind == Kind::kScalarType
                       : wanted == c10::TypeKind::LayoutType       ? argument.kind == Kind::kLayout
                       : wanted == c10::TypeKind::MemoryFormatType ? argument.kind == Kind::kMemoryFormat
                                                                   : true);
    if (!fits) throw Misfit{"argument '" + formal.name() + "' is not a " + formal.real_type()->str()};
  }

  // Checks of the trace about dtypes, which would refuse another dtype of the model, and hints about sizes.
  static bool IsTraceOnly(const std::string& target) {
    return target == "aten::_assert_tensor_metadata" || target == "aten::sym_constrain_range_for_size" ||
           target == "aten::sym_constrain_range";
  }

  bool AddOperator(const ProgramNode& node, Instruction& instruction) {
    if (IsTraceOnly(node.target)) return false;
    if (node.target == "aten::sym_size" && AddSize(node, instruction)) return true;
    instruction.op = c10::Dispatcher::singleton().findSchema({node.target, node.overload});
    if (!instruction.op) {
      throw Misfit{"operator '" + node.target + (node.overload.empty() ? "" : "." + node.overload) +
                   "' is not registered: load the library that registers the operator before the program"};
    }
    const std::vector<c10::Argument>& returns = instruction.op->schema().returns();
    if (node.outputs_in_list && (returns.size() != 1 || returns[0].type()->kind() != c10::TypeKind::ListType))
      throw Misfit{"'" + node.target + "' does not return one list"};
    Given given;
    std::set<std::string> taken;
    for (const auto& [name, argument] : node.inputs) given[name] = &argument;
    for (const c10::Argument& formal : instruction.op->schema().arguments()) {
      const auto found = given.find(formal.name());
      text_ += ",";
      if (found == given.end()) {
        if (!formal.default_value())
          throw Misfit{"argument '" + formal.name() + "' of '" + node.target + "' is missing"};
        instruction.operands.push_back(Constant(*formal.default_value(), "="));
        continue;
      }
      CheckEnumeration(formal, *found->second);
      if (FollowsMode(formal.name(), *found->second, given)) {
        text_ += "T";
        instruction.operands.push_back({Operand::Kind::kTraining, false, false, 0});
      } else {
        instruction.operands.push_back(Make(*found->second, formal.type().get()));
        if (OfBothModes() && formal.name() == "dropout_p" && found->second->kind == Kind::kFloat) {
          text_ += "D";
          instruction.operands.back().kind = Operand::Kind::kDropout;
        }
      }
      taken.insert(formal.name());
    }
    std::erase_if(given, [&](const auto& one) { return taken.contains(one.first); });
    if (!given.empty()) throw Misfit{"'" + node.target + "' has no argument '" + given.begin()->first + "'"};
    instruction.in_training = CountsBatches(node, instruction);
    if (instruction.in_training) text_ += "B";
    if (node.target == "aten::embedding" && instruction.operands[0].kind == Operand::Kind::kParameter) {
      instruction.kind = Instruction::Kind::kLookup;
    }
    if (node.target == "aten::scaled_dot_product_attention") instruction.kind = Instruction::Kind::kAttention;
    return true;
  }

  using Given = std::unordered_map<std::string, const ProgramArgument*>;

  bool OfBothModes() const { return program_.trains && program_.evaluates; }

  // In a graph that is that of both modes, what was on in training follows the mode of the module: dropouts and
  // recurrent layers (`train`), rrelu and batch norm (`training`), instance norm (`use_input_stats`). What was off in
  // the export stays off: the model decided so. A norm without running statistics takes those of its input in either
  // mode.
  bool FollowsMode(const std::string& name, const ProgramArgument& argument, const Given& given) const {
    if (!OfBothModes() || argument.kind != Kind::kBool || argument.integer == 0) return false;
    if (name != "train" && name != "training" && name != "use_input_stats") return false;
    const auto mean = given.find("running_mean");
    return mean == given.end() || mean->second->kind != Kind::kNone;
  }

  // Batch norm counts its batches in training alone; the traced graph has the addition and not the condition.
  bool CountsBatches(const ProgramNode& node, const Instruction& instruction) const {
    if (!OfBothModes() || node.target != "aten::add_" || instruction.operands[0].kind != Operand::Kind::kParameter)
      return false;
    return body_.parameters[instruction.operands[0].index].ends_with(".num_batches_tracked");
  }

  bool AddSize(const ProgramNode& node, Instruction& instruction) {
    const ProgramArgument* of = nullptr;
    const ProgramArgument* dim = nullptr;
    for (const auto& [name, argument] : node.inputs) (name == "self" ? of : dim) = &argument;
    if (of == nullptr || dim == nullptr || of->kind != Kind::kValue || dim->kind != Kind::kInt) return false;
    if (node.outputs.size() != 1 || node.outputs[0] == ProgramNode::kNoValue) return false;
    const auto dims = static_cast<int64_t>(program_.values[of->value].sizes.size());
    instruction.dim = dim->integer < 0 ? dim->integer + dims : dim->integer;
    if (instruction.dim < 0 || instruction.dim >= dims)
      throw Misfit{"the node reads the size of a dim that the tensor does not have"};
    AddText('d', instruction.dim);
    // Constants are never sharded, and each archive has its own.
    if (const int32_t tensor = tensor_of_value_[of->value];
        tensor >= 0 && program_.tensors[static_cast<size_t>(tensor)].kind != ProgramTensor::Kind::kConstant) {
      instruction.kind = Instruction::Kind::kParameterSize;
      instruction.tensor = static_cast<uint32_t>(tensor);
      AddText('P', tensor);
      return true;
    }
    instruction.kind = Instruction::Kind::kSize;
    instruction.operands.push_back(ValueOperand(of->value));
    return true;
  }

  void AddCall(const CallNode& call) {
    Instruction instruction;
    instruction.kind = Instruction::Kind::kCall;
    instruction.child = static_cast<uint32_t>(body_.children.size());
    body_.children.push_back({Relative(call.module), call.occurrence});
    text_ += "\ncall " + Sized(body_.children.back().module) + "@" + std::to_string(call.occurrence) + "(";
    for (const uint32_t value : call.inputs) instruction.operands.push_back(ValueOperand(value));
    text_ += ")";
    AddOutputs(call.outputs, instruction);
    body_.instructions.push_back(std::move(instruction));
  }

  void AddText(char what, int64_t number) {
    text_ += what;
    text_ += std::to_string(number);
  }

  void AddOutput(uint32_t value) {
    const uint32_t at = Register(value);
    body_.outputs.push_back(at);
    AddText('o', at);
  }

  // Where the exporter recorded the call: tensors by the position of their argument; those that the call reads besides
  // (a mask that a closure holds) come behind. Without a record: by first use.
  void PlaceTensors(const RecordedCall* recorded) {
    std::map<uint32_t, uint32_t> position_of;
    std::map<uint32_t, uint32_t> result_of;
    uint32_t next = 0;
    if (recorded != nullptr) {
      for (const RecordedCall::Place& place : recorded->arguments) position_of.emplace(place.value, place.position);
      for (const RecordedCall::Place& place : recorded->results) result_of.emplace(place.value, place.position);
      next = static_cast<uint32_t>(recorded->argument_names.size());
    }
    for (uint32_t i = 0; i < call_->inputs.size(); ++i) {
      if (!body_.tensor_inputs[i]) continue;
      const auto found = position_of.find(call_->inputs[i]);
      body_.arguments.push_back({found == position_of.end() ? next++ : found->second, i});
    }
    std::stable_sort(body_.arguments.begin(), body_.arguments.end(),
                     [](const Place& a, const Place& b) { return a.position < b.position; });
    for (uint32_t i = 0; i < call_->outputs.size(); ++i) {
      if (program_.values[call_->outputs[i]].kind != ProgramValue::Kind::kTensor) continue;
      const auto found = result_of.find(call_->outputs[i]);
      if (recorded == nullptr || found != result_of.end()) {
        body_.results.push_back({recorded == nullptr ? static_cast<uint32_t>(body_.results.size()) : found->second, i});
      }
    }
    std::stable_sort(body_.results.begin(), body_.results.end(),
                     [](const Place& a, const Place& b) { return a.position < b.position; });
    for (const Place& place : body_.arguments)
      text_ += "a" + std::to_string(place.position) + ":" + std::to_string(place.index);
    for (const Place& place : body_.results)
      text_ += "s" + std::to_string(place.position) + ":" + std::to_string(place.index);
  }

  // Backwards: the first use that is met is the last one. A register that is read twice by one instruction is moved at
  // the second place only. A use in a branch moves the register only if the branch runs, so the kJoin clears what the
  // branches read last.
  void MarkLastUses() {
    std::vector<bool> needed(body_.registers, false);
    for (const uint32_t output : body_.outputs) needed[output] = true;
    Instruction* join = nullptr;  // the outermost one around the instruction
    int depth = 0;
    const auto mark = [&](Operand& operand) {
      if (operand.kind != Operand::Kind::kRegister || needed[operand.index]) return;
      operand.last = true;
      needed[operand.index] = true;
      if (join != nullptr) join->unused.push_back(operand.index);
    };
    for (auto at = body_.instructions.rbegin(); at != body_.instructions.rend(); ++at) {
      if (at->kind == Instruction::Kind::kJoin && depth++ == 0) join = &*at;
      if (at->kind == Instruction::Kind::kBranch && --depth == 0) join = nullptr;
      for (const uint32_t output : at->outputs) {
        if (output != Instruction::kNowhere && !needed[output]) at->unused.push_back(output);
      }
      for (auto operand = at->operands.rbegin(); operand != at->operands.rend(); ++operand) {
        mark(*operand);
        if (operand->kind != Operand::Kind::kList) continue;
        std::vector<Operand>& elements = body_.lists[operand->index].elements;
        for (auto element = elements.rbegin(); element != elements.rend(); ++element) mark(*element);
      }
    }
  }

  const ExportedProgram& program_;
  const CallTree& tree_;
  const std::vector<int32_t>& tensor_of_value_;
  Diagnostics& errors_;
  const CallNode* call_ = nullptr;
  Body body_;
  std::string text_;
  std::unordered_map<uint32_t, uint32_t> registers_;
  std::map<std::string, uint32_t> parameters_;
  std::vector<uint32_t> branches_;  // open ones: the instruction whose skip_to is not known yet
};

}  // namespace

c10::IValue WrappedNumber(const c10::Scalar& number) {
  at::Tensor tensor = at::scalar_to_tensor(number);
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

std::optional<c10::ScalarType> ScalarTypeOfProgram(int64_t serialized) {
  if (serialized == *SerializedDType("complex32")) return c10::kComplexHalf;
  if (serialized == *SerializedDType("complex128")) return c10::kComplexDouble;
  const std::optional<DType> dtype = DTypeFromExported(static_cast<int>(serialized));
  return dtype ? ScalarTypeOf(*dtype) : std::nullopt;
}

Result<CompiledProgram> CompileProgram(const ExportedProgram& program) {
  const CallTree tree = FindCalls(program);
  std::vector<int32_t> tensor_of_value(program.values.size(), -1);
  for (size_t i = 0; i < program.tensors.size(); ++i) {
    if (program.tensors[i].value >= 0)
      tensor_of_value[static_cast<size_t>(program.tensors[i].value)] = static_cast<int32_t>(i);
  }
  std::map<std::pair<std::string, int32_t>, const RecordedCall*> recorded;
  for (const RecordedCall& call : program.calls) recorded[{call.module, call.occurrence}] = &call;

  CompiledProgram out;
  Diagnostics errors;
  out.torn = tree.torn;
  out.nodes = program.graph.nodes.size();
  std::unordered_map<std::string, std::shared_ptr<const Body>> by_text;
  for (size_t i = 0; i < tree.calls.size(); ++i) {
    const CallNode& call = tree.calls[i];
    BodyCompiler compiler(program, tree, tensor_of_value, errors);
    std::string text;
    const auto found = recorded.find({call.module, call.occurrence});
    Body body = i == 0 ? compiler.CompileRoot(call, text)
                       : compiler.Compile(call, found == recorded.end() ? nullptr : found->second, text);
    std::shared_ptr<const Body>& shared = by_text[text];
    if (shared == nullptr) shared = std::make_shared<const Body>(std::move(body));
    out.bodies[{call.module, call.occurrence}] = shared;
  }
  out.distinct = by_text.size();
  if (!errors.empty()) {
    constexpr size_t kShown = 20;
    if (errors.size() > kShown) errors.resize(kShown);
    return errors;
  }
  return out;
}

}  // namespace moonshard::program
