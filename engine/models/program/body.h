// Body: the compiled form of one call of a module of an exported program: a flat list of instructions over numbered
// registers. Identical layers share one body; what differs between them, parameters and the modules inside, is bound by
// relative name (program_module.h).
// Stage before: compile_program.h. Stage after: run_body.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

namespace moonshard::program {

// Where an argument of an instruction comes from.
struct Operand {
  enum class Kind : uint8_t {
    kConstant,  // Body::constants
    kRegister,
    kParameter,  // Body::parameters
    kList,       // Body::lists
    kDevice,     // of the model
    kTraining,   // whether the module is in training mode
    kDropout,    // in training mode the number in Body::constants, in evaluation mode 0
  };
  Kind kind = Kind::kConstant;
  bool last = false;  // of a register: nothing reads it afterwards, so its value is moved out
  bool wrap = false;  // a number that the operator takes as a tensor without dims
  uint32_t index = 0;
};

// A list that is made for each call, because an element is a register or a parameter.
struct ListOperand {
  enum class Of : uint8_t { kTensors, kOptionalTensors, kInts, kFloats, kBools };
  Of of = Of::kInts;
  std::vector<Operand> elements;
};

struct Instruction {
  enum class Kind : uint8_t {
    kOperator,
    kLookup,         // aten::embedding by a parameter, which may hold some rows only
    kAttention,      // aten::scaled_dot_product_attention, whose kernels end the process where keys have no heads
    kSize,           // of a tensor: operands tensor, dim
    kParameterSize,  // of a parameter of the program: `tensor`, `dim`; its local shape, whatever it holds at the moment
    kArithmetic,     // `arithmetic` on numbers
    kCall,           // of `child`
    kEnterGradMode,
    kEnterAutocast,
    kLeave,
  };
  static constexpr uint32_t kNowhere = UINT32_MAX;
  Kind kind = Kind::kOperator;
  bool outputs_in_list = false;
  bool in_training = false;  // in evaluation mode it is left out, and gives its first operand
  std::optional<c10::OperatorHandle> op;
  std::vector<Operand> operands;
  std::vector<uint32_t> outputs;  // registers; kNowhere: not kept
  std::vector<uint32_t> unused;   // outputs that nothing reads
  uint32_t child = 0;             // kCall: index into Body::children
  uint32_t tensor = 0;            // kParameterSize: index of the program's tensors
  int64_t dim = 0;
  std::string name;        // of the node, for messages
  std::string arithmetic;  // of kArithmetic, "floordiv"
  int arithmetic_code = 0;
};

// Names are relative where they begin with a dot: ".q_proj" in the body of self_attn. "." is the module itself.
struct ChildCall {
  std::string module;
  int32_t occurrence = 0;
};

// A tensor of a call, by the position of the argument that it is, or is in; of results, by their place.
struct Place {
  uint32_t position = 0;
  uint32_t index = 0;  // of an input or output of the body
};

struct Body {
  uint32_t registers = 0;
  uint32_t inputs = 0;              // the first registers; the caller gives their values
  std::vector<uint32_t> outputs;    // registers, in the order in which the caller gets them
  std::vector<bool> tensor_inputs;  // parallel to the inputs: whether it is a tensor
  std::vector<Place> arguments;  // the inputs that are tensors: those without a known position come behind the others
  std::vector<Place> results;    // the outputs that the module returns
  std::vector<std::string> parameters;
  std::vector<ChildCall> children;
  std::vector<c10::IValue> constants;
  std::vector<ListOperand> lists;
  std::vector<Instruction> instructions;
};

}  // namespace moonshard::program
